"""How far the tracking log has come, noted outside of it: entries that are lost from its end leave no gap to be seen.

A note is written after the entry that it speaks of is durable, so a note beyond the log's end means a loss. It is made
every so many entries: what is lost from the end since the last note is not told here.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime

from pipeline.clock import iso
from pipeline.errors import CorruptObject, ObjectExists, ObjectMissing
from pipeline.lake.store.objects import ObjectStore
from pipeline.watermark.state import WatermarkState

FOLDER = "log_witness/"
"""Beside `tracking/`, not in it: who loses that folder keeps this one."""

ENTRIES_BETWEEN = 10
"""About a minute of ticks: the most that can be lost from the log's end without a note that says so."""

KEPT = 2
"""Notes; the older ones say nothing that the newest does not."""

DIGITS = 12


@dataclass(frozen=True, slots=True)
class Note:
    """The log had this entry, and this watermark."""

    number: int
    watermark: datetime | None


class LogWitness:
    """Takes notes, and compares the log with them. One user at a time; any number of them may write."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._is_compared = False
        self._noted: int | None = None

    def newest(self) -> Note | None:
        """The note with the largest number. One that is damaged still tells its number, by its name."""
        for name in reversed(self._names()):
            number = _number(name)
            try:
                said = json.loads(self._objects.read(name))["watermark"]
                return Note(number, None if said is None else datetime.fromisoformat(said))
            except ObjectMissing:  # removed meanwhile, so there is a newer one
                return self.newest()
            except (ValueError, KeyError, TypeError):
                return Note(number, None)
        return None

    def refuse_lost_end(self, state: WatermarkState) -> None:
        """Raise CorruptObject if the log once had more entries than `state` was folded from. Compares once: who
        holds a state adds to what it has seen."""
        if self._is_compared:
            return
        note = self.newest()
        if note is not None and note.number > state.number:
            raise CorruptObject(lost_end(note, state.number))
        self._is_compared = True

    def note(self, state: WatermarkState) -> bool:
        """Note how far the log has come, if it is far enough from the last note; whether it was."""
        if self._noted is None:
            newest = self.newest()
            self._noted = -ENTRIES_BETWEEN if newest is None else newest.number
        if state.number - self._noted < ENTRIES_BETWEEN:
            return False
        watermark = None if state.watermark is None else state.watermark.isoformat()
        with contextlib.suppress(ObjectExists):  # another tracker has noted the same entry
            self._objects.create(
                f"{FOLDER}{state.number:0{DIGITS}d}.json", json.dumps({"watermark": watermark}).encode()
            )
        self._noted = state.number
        for name in self._names()[:-KEPT]:
            self._objects.delete(name)
        return True

    def accept_end(self, number: int) -> None:
        """Forget what was noted beyond this entry: an operator has taken note of the loss."""
        for name in self._names():
            if _number(name) > number:
                self._objects.delete(name)

    def _names(self) -> list[str]:
        return [name for name in self._objects.names(FOLDER) if name.removeprefix(FOLDER)[:DIGITS].isdigit()]


def lost_end(note: Note, last: int) -> str:
    """What to say of a log whose end is lost."""
    reached = "" if note.watermark is None else f", when the watermark was at {iso(note.watermark)}"
    ends = "is empty" if last < 0 else f"ends with entry {last}"
    return f"the tracking log {ends}, and it had entry {note.number}{reached}: its end is lost. {what_to_do(last)}"


def what_to_do(last: int) -> str:
    """How a log goes on whose end is lost."""
    return (
        f"Put back a backup of tracking/log, or, where there is none, run `tidemark forget {last + 1}`: the watermark "
        "then holds until base has landed everything that the lost entries may have known"
    )


def _number(name: str) -> int:
    return int(name.removeprefix(FOLDER)[:DIGITS])
