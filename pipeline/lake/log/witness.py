"""Notes of the tracking log's end, outside its folder: entries lost from the end leave no gap in the log.

A writer notes each entry once it is durable, and only then acknowledges. So a note beyond the log's end reveals a loss.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from pydantic import Field

from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import DamagedNote, ObjectMissing
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Note:
    """A note that the log had the entry `number`, and its watermark then."""

    watermark: datetime | None
    number: Annotated[int, Field(exclude=True)] = -1


NOTED = JsonKind("log_witness/", key=r"\d{12}", holds=Note)
"""The notes. Their keys are entry numbers. They are outside `tracking/`, so that they survive the loss of that
folder."""


class LogWitness:
    """Writes and reads the notes of one log. An instance has one user at a time; any number of instances may share the
    notes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, NOTED)
        self._own: str | None = None

    def newest_number(self) -> int:
        """Return the largest noted number; -1 without a note. Lists the notes and reads none."""
        return max(map(int, self._notes.listed()), default=-1)

    def newest(self) -> Note | None:
        """Return the note with the largest number. A damaged note still has its number, in its name. Raises
        NewerFormat."""
        keys = self._notes.listed()
        if not keys:
            return None
        try:
            return replace(self._notes.read(keys[-1]), number=int(keys[-1]))
        except ObjectMissing:  # a writer has replaced it by a newer one
            return self.newest()
        except DamagedNote:
            return Note(None, int(keys[-1]))

    def note(self, number: int, watermark: datetime | None) -> None:
        """Note that the log has this entry, and delete the superseded notes."""
        key = f"{number:012d}"
        superfluous = [older for older in self._notes.listed() if older < key] if self._own is None else [self._own]
        self._notes.ensure(key, Note(watermark))
        self._notes.delete(*superfluous)
        self._own = key

    def accept_end(self, number: int) -> None:
        """Delete the notes beyond this entry, after an operator has accepted the loss."""
        self._notes.delete(*(key for key in self._notes.listed() if int(key) > number))


def lost_end(note: Note, last: int) -> str:
    """Return the message for a log that ends before its newest note."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return (
        f"the tracking log {ends}, and it had entry {note.number}{reached}: its end is lost. Restore a backup of "
        f"tracking/log or, without one, run `tidemark repair --forget {last + 1}`: the watermark then holds "
        "until base has landed everything that the lost entries may have known"
    )
