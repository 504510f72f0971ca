"""The tracking log: one numbered, create-only sequence of histogram snapshots and decisions.

If another writer has taken a number, the log folds that entry and tries the next number. So every decision is made
with all entries before it in view, whoever wrote them, and the log has no gaps. Old entries move to archives, from the
first one up to a compacted one; the entries that are left are all that a restart needs.
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
from tidemark.pipeline.lake.log.watermark_object import SENT, WATERMARK
from tidemark.pipeline.lake.log.witness import LogWitness, lost_end
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.watermark.state import Beginning, Compacted, DecisionRecord, Entry, Lost, WatermarkState

logger = logging.getLogger(__name__)

FOLDER = "tracking/log/"
SUFFIX = ".parquet"
ATTEMPTS = 100
"""The most numbers in a row that other writers may take. A few trackers never take so many."""

QUICK = timedelta(minutes=1)
"""An entry that was the newest so short a time ago is not archived: housekeeping leaves each for an hour."""

READ_ON = 20
"""New entries that are read one by one for the watermark alone; a tick writes a few. Beyond that a listing is less."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest entry that was seen, and what the log said then: the watermark, the contract that messages are judged
    by, and the newest decision."""

    number: int = -1
    watermark: datetime | None = None
    contract: str = ""
    record: DecisionRecord | None = None


CHECKPOINT_EVERY = 200
"""Entries of the log between two compacted ones. Restoring reads all since the last of them: half an hour of ticks of
10 s, and a compacted entry is as large as the state."""


class TrackingLog:
    """The log and the fold of its entries. An instance has one user at a time; any number of them may share a log. The
    fold is a cache: `catch_up` brings it up to date, from nothing if need be. `entry` reads an entry again and again,
    unless `kept_bytes` let it keep some: for those who look at the past alone, where nothing changes."""

    def __init__(
        self, objects: ObjectStore, *, checkpoint_every: int, kept_bytes: int = 0, clock: Clock | None = None
    ) -> None:
        """Without a `clock`, each append proves anew that its number was never taken."""
        self._objects = objects
        self._clock = clock
        self._seen: tuple[datetime, float] | None = None
        """The time at which the state in memory was the newest."""
        self._archive = LogArchive(objects)
        self._witness = LogWitness(objects)
        self._is_compared = False
        self._checkpoint_every = checkpoint_every
        self._writer = uuid.uuid4().hex
        self._standing: WatermarkState | None = None
        self._tail: tuple[int, bytes] | None = None
        """The newest entry that was folded, as it was read or written."""
        self._contents: LRUCache[Any, bytes] = LRUCache(kept_bytes, len)
        self._contents_lock = Lock()
        self._looked = Newest()
        self._looked_at: tuple[datetime, float] | None = None
        self._judged_by: str | None = None
        """The contract that this process has stated."""

    def catch_up(self) -> WatermarkState:
        """Fold the entries that others have written since, and return the state. Raises CorruptObject for a damaged or
        missing entry; the caller must not pull then, since the state lacks what that entry knew."""
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
        """Like `catch_up`, for a caller that goes on to append: raises CorruptObject also if the log's end is lost."""
        # Before the log is read: what was noted is in it by then. Ticks that follow one another need no listing: they
        # look at the entry that was the newest, and at the next.
        noted = -1 if self._is_compared and self._is_quick(self._seen) else self._witness.newest_number()
        state = self.catch_up()
        note = self._witness.newest() if noted > state.number else None
        if note is not None:
            raise CorruptObject(lost_end(note, state.number))
        self._is_compared = True
        return state

    def watermark_noted(self) -> datetime | None:
        """The watermark that was last noted outside of the log; None if no note says one."""
        note = self._witness.newest()
        return None if note is None else note.watermark

    def begin(self, beginning: Beginning) -> WatermarkState:
        """Write the log's beginning, unless it has one."""
        return self._append(lambda state: beginning if state.complete_from is None else None)

    def append(self, entry: Entry, judged_by: str = "") -> WatermarkState:
        """Make an entry durable under the next free number. Raises ContractReplaced, and writes nothing, if its
        messages were judged by another contract than the newest in the log."""

        def build(state: WatermarkState) -> Entry:
            _refuse(judged_by, state.contract)
            return entry

        return self._append(build)

    def judge_by(self, contract: str) -> None:
        """State what messages are judged by from now on, when a process begins to track. What was tracked before was
        judged by another contract if the log says so: then the watermark holds until base has passed it. Raises
        ContractReplaced if another process has stated another one since the first call."""
        is_first, self._judged_by = self._judged_by != contract, contract

        def build(state: WatermarkState) -> Entry | None:
            if not is_first:
                _refuse(contract, state.contract)
            is_new = bool(contract and state.contract) and contract != state.contract
            return Lost("messages are judged by another contract from here on", contract=contract) if is_new else None

        self._append(build)

    def refuse_other(self, contract: str) -> None:
        """Raise ContractReplaced if the newest contract in the log is another one."""
        _refuse(contract, self.newest().contract)

    def decide(self, decide: Callable[[WatermarkState], DecisionRecord]) -> DecisionRecord:
        """Write a decision on the fold of all entries, and return it. If another entry comes first, decide again."""
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

    def newest_decision(self) -> DecisionRecord | None:
        """The newest decision, read as `newest_watermark` reads it."""
        return self.newest().record

    def newest_watermark(self) -> datetime | None:
        """The newest watermark alone, without the histogram; None before the first one. It reads the entries since the
        previous call, or a listing and the entries since the newest decision. Raises CorruptObject if one of these is
        damaged, or if the newest that it saw longer than QUICK ago is lost."""
        return self.newest().watermark

    def newest(self) -> Newest:
        """The outcome of the newest entries, read as `newest_watermark` reads it."""
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
        """The newest entry's number and the few entries that follow this one; None if a listing has to tell."""
        found, was_there = list[Entry](), self._looked_at
        for number in range(seen + 1, seen + 1 + READ_ON):
            name = entry_name(number)
            try:
                found.append(decode(self._objects.read(name), name))
            except ObjectMissing:
                # Also where the one before was read a while ago: both may have moved to an archive since.
                is_newest = self._is_quick(was_there) or not self._is_overtaken(number - 1)
                return (number - 1, found) if is_newest else None
        return None

    def _entries_back(self, newest: int, seen: int) -> Iterator[Entry]:
        """The entries after `seen`, back to the newest that states the watermark itself."""
        for number in range(newest, seen, -1):
            entry = self._live_entry(number)
            yield entry
            if isinstance(entry, DecisionRecord | Compacted):
                return

    def entry(self, number: int) -> Entry:
        """One entry, archived or not. Raises ObjectMissing or CorruptObject."""
        return decode(self.content(number), entry_name(number))

    @cachedmethod(attrgetter("_contents"), lock=attrgetter("_contents_lock"))
    def content(self, number: int) -> bytes:
        """One entry's bytes as they were written. Raises ObjectMissing or CorruptObject."""
        return self._archive.content(number) or self._live_content(number)

    def numbers(self) -> list[int]:
        """The numbers of all entries, archived ones too, in order."""
        live = self.live_numbers()  # first, so that an entry that moves meanwhile is found in its archive
        archived = (number for numbers in self._archive.ranges() for number in numbers)
        return sorted({*archived, *live})

    def live_numbers(self) -> list[int]:
        """The numbers of the entries that are not archived, in order."""
        found = (name.removeprefix(FOLDER).removesuffix(SUFFIX) for name in self._objects.names(FOLDER))
        return sorted(int(number) for number in found if number.isdigit())

    def forget(self, number: int, what: str, watermark_at_least: datetime | None = None) -> None:
        """Replace an entry that is beyond repair by a note of its loss. Assumption: no tracker runs. The watermark does
        not go back below `watermark_at_least`, which is known from outside the log: the entry may have been the newest
        decision. Raises LakeError for an archived entry, which no tracker needs, and NewerFormat for one that a later
        version can read."""
        if self._archive.covers(number):
            raise LakeError(
                f"entry {number} is in an archive under {self._objects.uri}/{ARCHIVES.prefix}, which no tracker needs: "
                "put back a copy of that, or move it away"
            )
        with suppress(ObjectMissing, CorruptObject):
            self.entry(number)
        note = encode(Lost(what, watermark_at_least), self._writer)
        self._objects.delete(entry_name(number))
        self._objects.create(entry_name(number), note)
        self._witness.accept_end(max(self.numbers()))
        for told in (WATERMARK, SENT):  # they may know a number that is taken again; the next tick writes them
            self._objects.delete(told.name(told.key))
        self._standing = None
        with self._contents_lock:
            self._contents.clear()

    def _append(self, build: Callable[[WatermarkState], Entry | None]) -> WatermarkState:
        """Write what `build` makes of the state under the next number; None writes nothing. The state in memory is not
        brought up to date first: that the next number is free proves that it is current."""
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
                # Another writer took the number, and its entry was archived, between our look and our write.
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
        """Return whether this number was another entry's, which was archived, and perhaps dropped, between our look and
        our write. Entries are moved from the oldest on, and never the newest: so while the one before is as we folded
        it, ours was never taken; and where it is gone without a newer one, it is lost, and ours leaves the gap that
        tells. Before the first, a gap behind it tells that ours was taken.

        The one before may also have moved since our write, with newer ones behind ours. Then ours is in the archive as
        well, or it is a compacted entry, before which each archive ends, and what is kept goes on with the next number.
        (Where that is so although the number was taken, it says nothing new, and the next entry is read.)"""
        if self._is_quick(self._seen):
            return False
        if number == 0:
            return bool(self._archive.ranges()) or self.live_numbers()[1:2] not in ([], [1])
        with suppress(ObjectMissing):
            return self._tail is None or self._objects.read(entry_name(number - 1)) != self._tail[1]
        archives = self._archive.ranges()
        if any(number in numbers for numbers in archives):
            return self._archive.content(number) != content
        newer = [one for one in self.live_numbers() if one > number]
        if any(numbers[0] > number for numbers in archives) or newer[:1] not in ([], [number + 1]):
            return True
        return bool(newer) and not isinstance(entry, Compacted)

    def _now(self) -> tuple[datetime, float] | None:
        return None if self._clock is None else (self._clock.now(), self._clock.monotonic())

    def _is_quick(self, seen: tuple[datetime, float] | None) -> bool:
        """Return whether `seen` is a moment ago, by a clock that may be set, and by one that may stand still while the
        machine sleeps."""
        now = self._now()
        if now is None or seen is None:
            return False
        return abs(now[0] - seen[0]) < QUICK and now[1] - seen[1] < QUICK.total_seconds()

    def _live_entry(self, number: int) -> Entry:
        """An entry that is not archived. Raises CorruptObject if it is damaged or missing."""
        try:
            return decode(self._live_content(number), entry_name(number))
        except CorruptObject:
            self._contents.clear()  # a backup may be put back
            raise
        except ObjectMissing:
            raise self._gap(number) from None

    @cachedmethod(attrgetter("_contents"), lock=attrgetter("_contents_lock"))
    def _live_content(self, number: int) -> bytes:
        """The content of an entry that was listed outside the archives. It may have moved there since."""
        try:
            return self._objects.read(entry_name(number))
        except ObjectMissing:
            archived = self._archive.content(number) if self._archive.covers(number) else None
            if archived is None:
                raise
            return archived

    def _is_overtaken(self, number: int) -> bool:
        """Return whether the last folded entry has moved to an archive, which may be dropped, so that newer entries
        exist. Raises CorruptObject if that entry is lost: nothing may be appended after it."""
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
        """Return whether an entry precedes all that are kept: the oldest are dropped first."""
        first = min((*(numbers[0] for numbers in self._archive.ranges()), *self.live_numbers()), default=-1)
        return number < first

    def _gap(self, number: int) -> CorruptObject:
        return CorruptObject(
            f"{self._objects.uri}/{entry_name(number)} is missing from the tracking log; put back a backup, or "
            f"run `tidemark repair --forget {number}`: the watermark then holds until base has caught up"
        )

    def _restored(self) -> WatermarkState:
        """The fold from the newest compacted entry on, or from the first. Raises CorruptObject for a gap."""
        numbers = self.live_numbers()
        if not numbers:
            return WatermarkState()
        state = folded_up_to(numbers[-1], self._live_entry)
        self._tail = state.number, self._live_content(state.number)
        logger.info("restored the histogram from entries %d to %d", state.checkpoint, state.number)
        return state


def folded_up_to(last: int, read: Callable[[int], Entry]) -> WatermarkState:
    """The fold of all entries up to `last`: reads back to the newest compacted one, or to the first."""
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
    """The watermark that an entry states, or at least allows, and the contract; nothing if it does not say."""
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
            "these messages were judged by another contract than the newest that a process of this lake has begun "
            "with. They come again. Restart this process with the [message] settings and the version of the others"
        )


def entry_name(number: int) -> str:
    """The object that holds an entry."""
    return f"{FOLDER}{number:012d}{SUFFIX}"
