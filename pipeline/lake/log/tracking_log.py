"""The tracking log: one numbered, create-only sequence of histogram snapshots and decisions.

If another writer has taken a number, the log folds that entry and tries the next number. So every decision takes all
earlier entries into account, whoever wrote them, and the log has no gaps. Old entries move to archives, from the first
entry up to a compacted one; a restart needs only the remaining entries.
"""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from threading import Lock
from typing import Any

from cachetools import LRUCache, cachedmethod

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import (
    ContractReplaced,
    CorruptObject,
    LakeError,
    ObjectExists,
    ObjectMissing,
    TableConflict,
)
from tidemark.pipeline.lake.log.archive import ARCHIVES, LogArchive
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.log.notes import SENT, WATERMARK, LogWitness, lost_end
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.watermark.state import Beginning, Compacted, DecisionRecord, Entry, Lost, WatermarkState

logger = logging.getLogger(__name__)

FOLDER = "tracking/log/"
SUFFIX = ".parquet"
ATTEMPTS = 100
"""Maximum number of consecutive numbers lost to other writers. A few trackers never reach it."""

QUICK = timedelta(minutes=1)
"""An entry that was the newest less than this long ago is not archived yet: housekeeping archives entries after an
hour."""

READ_ON = 20
"""Maximum number of new entries that `newest` reads one by one: a tick writes only a few. For more, listing is
cheaper."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest entry seen, and the state as of that entry: the watermark, the contract by which messages are judged,
    and the newest decision."""

    number: int = -1
    watermark: datetime | None = None
    contract: str = ""
    record: DecisionRecord | None = None


CHECKPOINT_EVERY = 200
"""Number of log entries between two compacted ones. A restore reads all entries since the last compacted one: half an
hour of 10 s ticks. A compacted entry is as large as the state."""


class TrackingLog:
    """The log, and the state folded from its entries. An instance has one user at a time; any number of instances may
    share a log. The state is a cache: `catch_up` brings it up to date, from scratch if necessary. `kept_bytes` is the
    size of a cache for the entries that `entry` reads, for users who only read past entries."""

    def __init__(
        self, objects: ObjectStore, *, checkpoint_every: int, kept_bytes: int = 0, clock: Clock | None = None
    ) -> None:
        """Open the log. Without a `clock`, each append verifies that its number was never taken."""
        self._objects = objects
        self._clock = clock
        self._seen: tuple[datetime, float] | None = None
        """The last time at which the state in memory was known to be current."""
        self._archive = LogArchive(objects)
        self._witness = LogWitness(objects)
        self._is_compared = False
        self._checkpoint_every = checkpoint_every
        self._writer = uuid.uuid4().hex
        self._standing: WatermarkState | None = None
        self._tail: tuple[int, bytes] | None = None
        """The number and the content of the newest folded entry, as read or written."""
        self._contents: LRUCache[Any, bytes] = LRUCache(kept_bytes, len)
        self._contents_lock = Lock()
        self._looked = Newest()
        self._looked_at: tuple[datetime, float] | None = None
        self._judged_by: str | None = None
        """The contract that this process stated in `judge_by`."""

    def catch_up(self) -> WatermarkState:
        """Fold the entries written by others since the last call, and return the state. Raises CorruptObject for a
        damaged or missing entry; then the caller must not pull, since the state lacks that entry's knowledge."""
        state = self._restored() if self._standing is None else self._standing
        while True:
            self._seen = self._now()
            name = entry_name(state.number + 1)
            try:
                content = self._objects.read(name)
            except ObjectMissing:
                if not self._is_overtaken(state.number):
                    self._standing = state
                    return state
                state = self._restored()
                continue
            state = state.after(state.number + 1, decode(content, name))
            self._tail = state.number, content

    def catch_up_to_append(self) -> WatermarkState:
        """Like `catch_up`, for a caller that will append: also raises CorruptObject if the log's end is lost."""
        # Read the note before the log: a noted entry is in the log by then. Ticks in quick succession need no listing:
        # they read the last known entry and the next one.
        noted = -1 if self._is_compared and self._is_quick(self._seen) else self._witness.newest_number()
        state = self.catch_up()
        note = self._witness.newest() if noted > state.number else None
        if note is not None:
            raise CorruptObject(lost_end(note, state.number))
        self._is_compared = True
        return state

    def watermark_noted(self) -> datetime | None:
        """Return the watermark last noted outside the log; None if no note has one."""
        note = self._witness.newest()
        return None if note is None else note.watermark

    def begin(self, beginning: Beginning) -> WatermarkState:
        """Write the log's beginning, unless it has one already."""
        return self._append(lambda state: beginning if state.complete_from is None else None)

    def append(self, entry: Entry, judged_by: str = "") -> WatermarkState:
        """Write an entry durably under the next free number. Raises ContractReplaced, and writes nothing, if its
        messages were judged by a contract other than the newest in the log."""

        def build(state: WatermarkState) -> Entry:
            _refuse(judged_by, state.contract)
            return entry

        return self._append(build)

    def judge_by(self, contract: str) -> None:
        """State the contract by which this process judges messages, when it begins to track. If the log has another
        contract, earlier messages were judged by that contract: then the watermark holds until base has passed them.
        Raises ContractReplaced if another process has stated another contract since the first call."""
        is_first, self._judged_by = self._judged_by != contract, contract

        def build(state: WatermarkState) -> Entry | None:
            if not is_first:
                _refuse(contract, state.contract)
            is_new = bool(contract and state.contract) and contract != state.contract
            return Lost("messages are judged by another contract from here on", contract=contract) if is_new else None

        self._append(build)

    def refuse_other(self, contract: str) -> None:
        """Raise ContractReplaced if the newest contract in the log differs from `contract`."""
        _refuse(contract, self.newest().contract)

    def decide(self, decide: Callable[[WatermarkState], DecisionRecord]) -> DecisionRecord:
        """Write the decision that `decide` makes from the state of all entries, and return it. If another entry takes
        its number, decide again."""
        contract = self._judged_by or ""

        def build(state: WatermarkState) -> DecisionRecord:
            _refuse(contract, state.contract)
            return replace(decide(state), contract=contract)

        record = self._append(build).record
        if record is None:
            raise ValueError("a decision was appended, and the state has none")
        return record

    def compact_if_due(self) -> WatermarkState:
        """Write a compacted entry if `checkpoint_every` entries have followed the last one."""
        every = self._checkpoint_every
        return self._append(lambda state: Compacted(state) if state.number - state.checkpoint >= every else None)

    def newest(self) -> Newest:
        """Return the watermark, contract and decision as of the newest entry, without restoring the histogram. Reads
        the entries since the previous call, or a listing and the entries since the newest decision. Raises
        CorruptObject if one of these entries is damaged, or if the last seen entry is lost and was seen more than QUICK
        ago."""
        seen, looks_at = self._looked, self._now()
        found = self._entries_after(seen.number) if seen.number >= 0 else None
        if found is None:
            newest = max(self.live_numbers(), default=-1)
            if newest < seen.number:
                raise self._gap(seen.number)
            found = newest, list(self._entries_back(newest, seen.number))[::-1]
        newest, entries = found
        watermark, contract, record = seen.watermark, seen.contract, seen.record
        for entry in entries:
            stated, judged_by = _stated(entry)
            watermark = max((one for one in (watermark, stated) if one is not None), default=None)
            contract = judged_by or contract
            if isinstance(entry, DecisionRecord | Compacted):
                record = entry if isinstance(entry, DecisionRecord) else entry.state.record
        self._looked, self._looked_at = Newest(newest, watermark, contract, record), looks_at
        return self._looked

    def _entries_after(self, seen: int) -> tuple[int, list[Entry]] | None:
        """Return the newest entry's number and the few entries after `seen`; None if a listing is needed."""
        found, was_there = list[Entry](), self._looked_at
        for number in range(seen + 1, seen + 1 + READ_ON):
            name = entry_name(number)
            try:
                found.append(decode(self._objects.read(name), name))
            except ObjectMissing:
                # If the entry before was read a while ago, check it: both may have moved to an archive since.
                is_newest = self._is_quick(was_there) or not self._is_overtaken(number - 1)
                return (number - 1, found) if is_newest else None
        return None

    def _entries_back(self, newest: int, seen: int) -> Iterator[Entry]:
        """Yield the entries after `seen`, newest first, back to the newest decision or compacted entry, which states
        the watermark."""
        for number in range(newest, seen, -1):
            entry = self._live_entry(number)
            yield entry
            if isinstance(entry, DecisionRecord | Compacted):
                return

    def entry(self, number: int) -> Entry:
        """Return an entry, archived or not. Raises ObjectMissing or CorruptObject."""
        return decode(self.content(number), entry_name(number))

    @cachedmethod(attrgetter("_contents"), lock=attrgetter("_contents_lock"))
    def content(self, number: int) -> bytes:
        """Return an entry's bytes as written. Raises ObjectMissing or CorruptObject."""
        return self._archive.content(number) or self._live_content(number)

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, including archived ones, in order."""
        live = self.live_numbers()  # first, so that an entry that is moved meanwhile is found in its archive
        archived = (number for numbers in self._archive.ranges() for number in numbers)
        return sorted({*archived, *live})

    def live_numbers(self) -> list[int]:
        """Return the numbers of the entries that are not archived, in order."""
        found = (name.removeprefix(FOLDER).removesuffix(SUFFIX) for name in self._objects.names(FOLDER))
        return sorted(int(number) for number in found if number.isdigit())

    def forget(self, number: int, what: str, watermark_at_least: datetime | None = None) -> None:
        """Replace an entry that cannot be repaired with a note of its loss. Assumption: no tracker runs. The watermark
        does not go back below `watermark_at_least`, which comes from outside the log: the entry may have been the
        newest decision. Raises LakeError for an archived entry, which no tracker needs, and NewerFormat for an entry
        that a later version can read."""
        if self._archive.covers(number):
            raise LakeError(
                f"entry {number} is in an archive under {self._objects.uri}/{ARCHIVES.prefix}, which no tracker needs: "
                "restore a copy of that, or move it away"
            )
        with suppress(ObjectMissing, CorruptObject):
            self.entry(number)
        note = encode(Lost(what, watermark_at_least), self._writer)
        self._objects.delete(entry_name(number))
        self._objects.create(entry_name(number), note)
        self._witness.accept_end(max(self.numbers()))
        for told in (WATERMARK, SENT):  # they may have a number that will be reused; the next tick rewrites them
            self._objects.delete(told.name(told.key))
        self._standing = None
        with self._contents_lock:
            self._contents.clear()

    def _append(self, build: Callable[[WatermarkState], Entry | None]) -> WatermarkState:
        """Build an entry from the state, and write it under the next number. Writes nothing if `build` returns None.
        The state in memory is not refreshed first: if the next number is free, the state is current."""
        state = self._standing if self._is_compared else None
        for _ in range(ATTEMPTS):
            if state is None:
                state = self.catch_up() if self._is_compared else self.catch_up_to_append()
            entry = build(state)
            if entry is None:
                return state
            number, content, seen = state.number + 1, encode(entry, self._writer), self._now()
            try:
                self._objects.create(entry_name(number), content)
            except ObjectExists:
                state = None
                continue
            if self._was_taken(number, entry, content):
                # Between our read and our write, another writer took the number and its entry was archived.
                self._objects.delete(entry_name(number))
                state = self._standing = None
                continue
            self._standing, self._tail, self._seen = state.after(number, entry), (number, content), seen
            self._witness.note(number, self._standing.watermark)
            return self._standing
        raise TableConflict(
            f"other writers took {ATTEMPTS} numbers in a row in {self._objects.uri}/{FOLDER}; stop the trackers that "
            "should not run against this lake"
        )

    def _was_taken(self, number: int, entry: Entry, content: bytes) -> bool:
        """True if another entry had this number, and was archived (and perhaps dropped) between our read and our write.

        Entries move oldest first, and the newest never moves. So if the previous entry still exists as we folded it,
        our number was never taken. If the previous entry is gone and no newer entry exists, it is lost, and our entry
        leaves the gap that reveals this. For number 0, a gap after it shows that it was taken.

        The previous entry may also have moved since our write, with newer entries after ours. Then our entry is
        in the same archive, or it is a compacted entry, before which every archive ends, and the kept entries continue
        with the next number. (If the number was taken even so, our compacted entry says nothing new, and the next entry
        is read.) An archive with our entry and without the previous one took an entry whose number had been dropped.
        """
        if self._is_quick(self._seen):
            return False
        if number == 0:
            return bool(self._archive.ranges()) or self.live_numbers()[1:2] not in ([], [1])
        if self._tail is None:
            return True
        with suppress(ObjectMissing):
            return self._objects.read(entry_name(number - 1)) != self._tail[1]
        archives = self._archive.ranges()
        if any(number in numbers for numbers in archives):
            is_apart = not isinstance(entry, Compacted) and self._archive.content(number - 1) != self._tail[1]
            return is_apart or self._archive.content(number) != content
        newer = [one for one in self.live_numbers() if one > number]
        if any(numbers[0] > number for numbers in archives) or newer[:1] not in ([], [number + 1]):
            return True
        return bool(newer) and not isinstance(entry, Compacted)

    def _now(self) -> tuple[datetime, float] | None:
        return None if self._clock is None else (self._clock.now(), self._clock.monotonic())

    def _is_quick(self, seen: tuple[datetime, float] | None) -> bool:
        """True if `seen` is less than QUICK ago, by both clocks: the wall clock may be set, and the monotonic clock may
        stop while the machine sleeps."""
        now = self._now()
        if now is None or seen is None:
            return False
        return abs(now[0] - seen[0]) < QUICK and now[1] - seen[1] < QUICK.total_seconds()

    def _live_entry(self, number: int) -> Entry:
        """Return an entry that is not archived. Raises CorruptObject if it is damaged or missing."""
        try:
            return decode(self._live_content(number), entry_name(number))
        except CorruptObject:
            self._contents.clear()  # a backup may be restored
            raise
        except ObjectMissing:
            raise self._gap(number) from None

    @cachedmethod(attrgetter("_contents"), lock=attrgetter("_contents_lock"))
    def _live_content(self, number: int) -> bytes:
        """Return the content of an entry that was not archived when it was listed. It may have moved to an archive
        since."""
        try:
            return self._objects.read(entry_name(number))
        except ObjectMissing:
            archived = self._archive.content(number) if self._archive.covers(number) else None
            if archived is None:
                raise
            return archived

    def _is_overtaken(self, number: int) -> bool:
        """True if the last folded entry has moved to an archive, or was dropped with it, so that newer entries exist.
        Raises CorruptObject if the entry is lost: nothing may be appended after it."""
        if number < 0:
            return self._is_before_all(number)
        try:
            self._objects.read(entry_name(number))
        except ObjectMissing:
            if self._archive.covers(number) or self._is_before_all(number):
                return True
            raise self._gap(number) from None
        return False

    def _is_before_all(self, number: int) -> bool:
        """True if an entry precedes all kept entries: the oldest are dropped first."""
        first = min((*(numbers[0] for numbers in self._archive.ranges()), *self.live_numbers()), default=-1)
        return number < first

    def _gap(self, number: int) -> CorruptObject:
        return CorruptObject(
            f"{self._objects.uri}/{entry_name(number)} is missing from the tracking log; restore a backup, or "
            f"run `tidemark repair --forget {number}`: the watermark then holds until base has caught up"
        )

    def _restored(self) -> WatermarkState:
        """Return the state, folded from the newest compacted entry or, without one, from the first entry. Raises
        CorruptObject for a gap."""
        numbers = self.live_numbers()
        if not numbers:
            return WatermarkState()
        state = folded_up_to(numbers[-1], self._live_entry)
        self._tail = state.number, self._live_content(state.number)
        logger.info("restored the histogram from entries %d to %d", state.checkpoint, state.number)
        return state


def folded_up_to(last: int, read: Callable[[int], Entry]) -> WatermarkState:
    """Return the state after all entries up to `last`. Reads back to the newest compacted entry, or to the first."""
    entries: list[tuple[int, Entry]] = []
    for number in range(last, -1, -1):
        entries.append((number, read(number)))
        if isinstance(entries[-1][1], Compacted):
            break
    state = WatermarkState()
    for number, entry in reversed(entries):
        state = state.after(number, entry)
    return state


def _stated(entry: Entry) -> tuple[datetime | None, str]:
    """Return the watermark (or its lower bound) and the contract that an entry states; None and "" for an entry without
    them."""
    match entry:
        case Lost():
            return entry.watermark_at_least, entry.contract
        case DecisionRecord():
            return entry.decision.watermark, entry.contract
        case Compacted():
            return entry.state.watermark, entry.state.contract
    return None, ""


def _refuse(contract: str, newest: str) -> None:
    if contract and newest and contract != newest:
        raise ContractReplaced(
            "these messages were judged by another contract than the newest with which a process of this lake has "
            "started. They will be redelivered. Restart this process with the [message] settings and the version of "
            "the others"
        )


def entry_name(number: int) -> str:
    """Return the name of the object that holds an entry."""
    return f"{FOLDER}{number:012d}{SUFFIX}"
