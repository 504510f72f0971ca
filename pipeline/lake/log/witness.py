"""Notes of the tracking log's end, outside of its folder: entries that are lost from the end leave no gap.

A writer notes each entry once it is durable, and only then acknowledges. So a note beyond the end tells of a loss.
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
    """The log had this entry, and this watermark."""

    watermark: datetime | None
    number: Annotated[int, Field(exclude=True)] = -1


NOTED = JsonKind("log_witness/", key=r"\d{12}", holds=Note)
"""Their keys are the entries' numbers. They stand beside `tracking/`, so that they outlast the loss of that folder."""


class LogWitness:
    """Takes the notes of one log and reads them. One user at a time; any number of them may share the notes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, NOTED)
        self._own: str | None = None

    def newest_number(self) -> int:
        """The largest number that was noted; -1 without a note. It reads no object."""
        return max(map(int, self._notes.listed()), default=-1)

    def newest(self) -> Note | None:
        """The note with the largest number. A damaged note still tells its number, by its name. Raises NewerFormat."""
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
        """Note that the log has this entry, and delete the note that this one makes superfluous."""
        key = f"{number:012d}"
        superfluous = [older for older in self._notes.listed() if older < key] if self._own is None else [self._own]
        self._notes.ensure(key, Note(watermark))
        self._notes.delete(*superfluous)
        self._own = key

    def accept_end(self, number: int) -> None:
        """Delete what was noted beyond this entry: an operator has taken note of the loss."""
        self._notes.delete(*(key for key in self._notes.listed() if int(key) > number))


def lost_end(note: Note, last: int) -> str:
    """The message about a log that ends before a note."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return (
        f"the tracking log {ends}, and it had entry {note.number}{reached}: its end is lost. Put back a backup of "
        f"tracking/log, or, where there is none, run `tidemark repair --forget {last + 1}`: the watermark then holds "
        "until base has landed everything that the lost entries may have known"
    )
