"""How far the tracking log has come, noted outside of its folder: entries that are lost from its end leave no gap.

A writer notes each entry once it is durable, and only then acknowledges. So a note beyond the end tells of a loss.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime

from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import ObjectExists, ObjectMissing
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks, refuse_newer

FOLDER = "log_witness/"
"""Beside `tracking/`, so that the notes outlast the loss of that folder."""

DIGITS = 12


@dataclass(frozen=True, slots=True)
class Note:
    """The log had this entry, and this watermark."""

    number: int
    watermark: datetime | None


class LogWitness:
    """Takes the notes of one log and reads them. One user at a time; any number of them may share the notes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._own: str | None = None

    def newest_number(self) -> int:
        """The largest number that was noted; -1 without a note. It reads no object."""
        return max(map(_number, self._names()), default=-1)

    def newest(self) -> Note | None:
        """The note with the largest number. A damaged note still tells its number, by its name. Raises NewerFormat."""
        names = self._names()
        if not names:
            return None
        try:
            said = json.loads(self._objects.read(names[-1]))
            refuse_newer(f"{self._objects.uri}/{names[-1]}", said)
            watermark = said["watermark"]
            return Note(_number(names[-1]), None if watermark is None else datetime.fromisoformat(watermark))
        except ObjectMissing:  # a writer has replaced it by a newer one
            return self.newest()
        except (ValueError, KeyError, TypeError):
            return Note(_number(names[-1]), None)

    def note(self, number: int, watermark: datetime | None) -> None:
        """Note that the log has this entry, and delete the note that this one makes superfluous."""
        name = f"{FOLDER}{number:0{DIGITS}d}.json"
        superfluous = [older for older in self._names() if older < name] if self._own is None else [self._own]
        with contextlib.suppress(ObjectExists):
            said = {"watermark": None if watermark is None else watermark.isoformat(), **marks()}
            self._objects.create(name, json.dumps(said).encode())
        for older in superfluous:
            self._objects.delete(older)
        self._own = name

    def accept_end(self, number: int) -> None:
        """Delete what was noted beyond this entry: an operator has taken note of the loss."""
        for name in self._names():
            if _number(name) > number:
                self._objects.delete(name)

    def _names(self) -> list[str]:
        return [name for name in self._objects.names(FOLDER) if name.removeprefix(FOLDER)[:DIGITS].isdigit()]


def lost_end(note: Note, last: int) -> str:
    """The message about a log that ends before a note."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return (
        f"the tracking log {ends}, and it had entry {note.number}{reached}: its end is lost. Put back a backup of "
        f"tracking/log, or, where there is none, run `tidemark forget {last + 1}`: the watermark then holds until base "
        "has landed everything that the lost entries may have known"
    )


def _number(name: str) -> int:
    return int(name.removeprefix(FOLDER)[:DIGITS])
