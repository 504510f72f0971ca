"""Moves old entries of the tracking log to archives, and drops archives that are older than the log is kept.

Whole stretches move, from the first entry up to a compacted one, which stays: a restart reads no further back than
that, and every archive after the first begins with a compacted one, so that a replay can begin with any. May be killed
anywhere, and run at the same time as trackers, readers, and itself.
"""

from dataclasses import dataclass
from datetime import datetime

from pipeline.errors import CorruptObject
from pipeline.lake.log.archive import LogArchive, Stretch
from pipeline.lake.log.codec import decode
from pipeline.lake.log.tracking_log import TrackingLog, entry_name
from pipeline.lake.store.objects import ObjectStore
from pipeline.watermark.state import Compacted, DecisionRecord, Entry

ENTRIES = 1000
"""An archive is full with so many, and goes on to the next compacted one: some hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What was moved or dropped, or would be: entries that went to archives, leftovers of an earlier time that were
    deleted, and archives and the entries in them that were dropped."""

    entries: int = 0
    archives: int = 0
    leftovers: int = 0
    dropped_archives: int = 0
    dropped_entries: int = 0


class LogPacking:
    """Packs one log."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._archive = LogArchive(objects)
        self._log = TrackingLog(objects, checkpoint_every=1)

    def pack(self, before: datetime, *, dry_run: bool = False) -> Packed:
        """Move what was decided before a moment, as far as a compacted entry follows it that was made before it too.

        Guarantee: every entry can be read all the time, under its number. Raises CorruptObject for an entry that is
        damaged or missing, which stays as it is, with all after it; LakeError.
        """
        stretches = self._archive.stretches()
        live = self._log.live_numbers()
        leftovers = [number for number in live if any(number in stretch.numbers for stretch in stretches)]
        if not dry_run:
            for number in leftovers:
                self._archive.content(number)  # which it would not be without its archive
                self._objects.delete(entry_name(number))
        entries = archives = 0
        whole: dict[int, bytes] = {}
        current: dict[int, bytes] = {}
        left = [number for number in live if number not in set(leftovers)]
        for number, expected in zip(left, range(left[0], left[-1] + 1) if left else (), strict=False):
            if number != expected:
                raise CorruptObject(f"{self._objects.uri}/{entry_name(expected)} is missing from the tracking log")
            content = self._log.content(number)  # which another housekeeper may be moving
            entry = decode(content, entry_name(number))
            if _is_from(entry, before):
                break
            if isinstance(entry, Compacted):
                whole.update(current)
                current = {}
                if len(whole) >= ENTRIES:
                    entries, archives = entries + len(whole), archives + 1
                    self._move(whole, dry_run=dry_run)
                    whole = {}
            current[number] = content
        if whole:
            entries, archives = entries + len(whole), archives + 1
            self._move(whole, dry_run=dry_run)
        return Packed(entries=entries, archives=archives, leftovers=len(leftovers))

    def drop(self, before: datetime, *, dry_run: bool = False) -> Packed:
        """Delete the archives that end before a moment, the oldest first. Raises LakeError."""
        dropped: list[Stretch] = []
        for stretch in self._archive.stretches():
            decided_at = self._decided_at(stretch)
            if decided_at is None or decided_at >= before:
                break
            if not dry_run:
                self._archive.drop(stretch)
            dropped.append(stretch)
        return Packed(dropped_archives=len(dropped), dropped_entries=sum(len(stretch.numbers) for stretch in dropped))

    def _move(self, entries: dict[int, bytes], *, dry_run: bool) -> None:
        if dry_run:
            return
        self._archive.keep(entries)
        for number in sorted(entries):
            self._objects.delete(entry_name(number))

    def _decided_at(self, stretch: Stretch) -> datetime | None:
        """When the last decision in an archive was made."""
        for number in reversed(stretch.numbers):
            content = self._archive.content(number)
            if content is None:  # dropped by another housekeeper meanwhile
                return None
            entry = decode(content, entry_name(number))
            if isinstance(entry, DecisionRecord):
                return entry.decision.at
        return None


def _is_from(entry: Entry, moment: datetime) -> bool:
    """Whether an entry is known to have been made at a moment or later."""
    match entry:
        case DecisionRecord():
            return entry.decision.at >= moment
        case Compacted():
            return entry.state.decision is not None and entry.state.decision.at >= moment
        case _:
            return False
