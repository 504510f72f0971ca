"""Moves old entries of the tracking log to archives, and deletes old archives.

A compacted entry has the whole state so far. An archive takes the oldest entries in the log, and ends before a
compacted entry. A restart begins at the last compacted entry, and so needs no archive. Every archive except the first
begins with a compacted entry, from which a replay can start. Packing may be killed at any time, and may run
concurrently with trackers, readers and other packings.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from tidemark.pipeline.errors import CorruptObject, ObjectExists, ObjectMissing
from tidemark.pipeline.lake.log.archive import LogArchive
from tidemark.pipeline.lake.log.codec import decode
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, WatermarkState

ENTRIES = 1000
"""Minimum number of log entries per archive, except in the last archive that a packing writes. Once an archive has
enough entries, it ends before the next compacted entry. An archive takes a few hundred kilobytes."""

ALWAYS = datetime.max.replace(tzinfo=UTC)


class LogPacking:
    """Archives old entries of one tracking log, and deletes old archives. Both methods return how many `entries` and
    `archives` they archived or deleted, or would in a dry run. `now` is the current time. A decision with a later time
    was made while the clock was wrong. That time is ignored: the age of the entry follows from the decisions before and
    after it."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._archive = LogArchive(objects)
        self._log = TrackingLog(objects, checkpoint_every=1)

    def pack(self, before: datetime, now: datetime = ALWAYS, *, dry_run: bool = False) -> dict[str, int]:
        """Archive the old entries of the log. The last two compacted entries older than `before` stay in the log, and
        all entries before these two are archived. A compacted entry contains the state after all earlier entries.
        During the move, readers find every entry by its number.

        Also delete `leftovers`: objects whose entries were already archived or dropped. They exist if an earlier
        process died before it deleted them.

        Guarantee: entries written since a tracker last read the log stay in the log, however wrong the clocks are.

        Raises LakeError, and CorruptObject for a damaged or missing entry. The entries after it then stay in the log.
        """
        archived = {number for numbers in self._archive.ranges() for number in numbers}
        live = self._log.live_numbers()
        first = min(archived, default=0)
        leftovers = [number for number in live if number in archived or number < first]
        if not archived:
            leftovers = self._before_what_is_kept(live)
        if not dry_run:
            for number in leftovers:
                self._archive.content(number)  # raises if the archive is damaged, so that the only copy is not deleted
                self._objects.delete(entry_name(number))
        entries = archives = 0
        for stretch in self._old_stretches([number for number in live if number not in leftovers], before, now):
            entries, archives = entries + len(stretch), archives + 1
            if not dry_run:
                self._move(stretch)
        return {"entries": entries, "archives": archives, "leftovers": len(leftovers)}

    def drop(self, before: datetime, now: datetime = ALWAYS, *, dry_run: bool = False) -> dict[str, int]:
        """Delete the archives whose last decision is older than `before`, the oldest archive first. Raises
        LakeError."""
        dropped, undated = list[range](), list[range]()
        for numbers in self._archive.ranges():
            decided_at = self._decided_at(numbers, now)
            if decided_at is not None and decided_at >= before:
                break
            undated.append(numbers)
            if decided_at is not None:  # the undated archives before it are older
                for old in () if dry_run else undated:
                    self._archive.delete(old)
                dropped, undated = dropped + undated, []
        return {"entries": sum(map(len, dropped)), "archives": len(dropped)}

    def _old_stretches(self, numbers: Sequence[int], before: datetime, now: datetime) -> Iterator[dict[int, bytes]]:
        """Yield the log entries of each archive to write. Each archive ends before a compacted entry older than
        `before`, and at least one more such entry follows in the log."""
        whole, pending, current = dict[int, bytes](), dict[int, bytes](), dict[int, bytes]()
        for expected, number in enumerate(numbers, numbers[0] if numbers else 0):
            if number != expected:
                raise self._log.gap(expected)
            content = self._log.content(number)  # from an archive if another packing has just moved it
            entry = decode(content, entry_name(number))
            decision = WatermarkState().after(0, entry).decision
            decided_at = None if decision is None else decision.at
            if decided_at is not None and before <= decided_at <= now:
                break
            if isinstance(entry, Compacted) and (decided_at is None or decided_at < before):
                whole, pending, current = whole | pending, current, {}
                if len(whole) >= ENTRIES:
                    yield whole
                    whole = {}
            current[number] = content
        if whole:
            yield whole

    def _move(self, entries: dict[int, bytes]) -> None:
        numbers = range(min(entries), max(entries) + 1)
        try:
            self._archive.create(entries)
        except ObjectExists:  # an earlier packing was killed before it deleted the entries' own objects
            if self._archive.read(numbers) != entries:
                raise CorruptObject(
                    f"{self._archive.place(numbers)} differs from the log's entries; move this object away, and "
                    "`tidemark housekeep` will create it again"
                ) from None
        for number in numbers:
            self._objects.delete(entry_name(number))

    def _before_what_is_kept(self, live: list[int]) -> list[int]:
        """Return the numbers of leftover entries in a log without archives: their objects still exist, although their
        archive has been deleted.

        Leftover entries are at the start of the log, and a gap follows. The first of them is not a compacted entry, but
        the entry after the gap is.
        """
        gap = next((place for place, (one, other) in enumerate(pairwise(live), 1) if other > one + 1), 0)
        if not gap or live[0] == 0:
            return []
        is_kept, follows = (isinstance(self._log.entry(live[place]), Compacted) for place in (0, gap))
        return live[:gap] if follows and not is_kept else []

    def _decided_at(self, numbers: range, now: datetime) -> datetime | None:
        try:
            entries = self._archive.read(numbers)
        except ObjectMissing:  # another housekeeper has just deleted the archive
            return None
        newest_first = (decode(entries[number], entry_name(number)) for number in reversed(numbers))
        decided = (entry.decision.at for entry in newest_first if isinstance(entry, DecisionRecord))
        return next((at for at in decided if at <= now), None)
