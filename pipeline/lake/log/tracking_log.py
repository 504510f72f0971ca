"""The tracking log: a sequence of numbered, create-only entries with histogram snapshots and decisions.

A writer appends its entry under the next free number. If another writer has taken that number, the writer first applies
the other entry to its state, and then tries again. Therefore the log has no gaps, and every decision takes all earlier
entries into account. Old entries are moved to archives, which a restart does not need.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, islice
from threading import Lock
from types import UnionType
from typing import cast

from cachetools import TTLCache

from tidemark.pipeline import errors
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.figures import newest_of
from tidemark.pipeline.lake.log.archive import ARCHIVES, LogArchive
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.log.notes import SENT, WATERMARK, LogWitness, Note, end_at, lost_end
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.watermark.state import (
    Beginning,
    Compacted,
    DecisionRecord,
    Entry,
    Lost,
    Snapshot,
    WatermarkState,
)

logger = logging.getLogger(__name__)

FOLDER = "tracking/log/"
SUFFIX = ".parquet"
ATTEMPTS = 100
"""Maximum number of attempts to append an entry. An attempt fails if another writer takes the number first. A few
trackers never collide this often."""

Moment = tuple[datetime, float]
"""A wall-clock time and a value of the monotonic clock."""

QUICK = timedelta(minutes=1)
"""If an entry was the newest one less than this time ago, it is not archived yet, because housekeeping archives only
entries that are older than an hour."""

READ_ON = 20
"""If `newest` finds this many new entries, it lists the log, which is cheaper than reading on one by one. A tick writes
only a few entries."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The number of the newest log entry (-1 in an empty log), with the watermark, the newest decision and the message
    contract at that point. The watermark and the decision are None before the first decision."""

    number: int = -1
    watermark: datetime | None = None
    contract: str = ""
    record: DecisionRecord | None = None


CHECKPOINT_EVERY = 200
"""Number of log entries between two compacted entries. Each tick writes one or more entries, so with 10 s ticks this is
at most 33 minutes. A restart reads all entries since the last compacted one. A lower number would cost space, because a
compacted entry is as large as the whole state."""


UNUSED = timedelta(minutes=15)
"""Time after which an unused entry is dropped from the cache. The audit of losses uses the entries of the last hour
every five minutes."""


class PastEntries:
    """A cache for encoded log entries, shared by the instances of TrackingLog in a process. Thread-safe."""

    def __init__(self, at_most_bytes: int, clock: Clock | None = None) -> None:
        timer = (clock or SystemClock()).monotonic
        self._contents: TTLCache[int, bytes] = TTLCache(at_most_bytes, UNUSED.total_seconds(), timer, len)
        self._lock = Lock()

    def get(self, number: int) -> bytes | None:
        """Return the entry with this number, or None if it is not cached."""
        with self._lock:
            if (content := self._contents.get(number)) is not None:
                self._contents[number] = content  # restarts its time in the cache
            return content

    def add(self, number: int, content: bytes) -> bytes:
        """Cache an entry that is in the log, and return it. If it is larger than the cache, only return it."""
        with self._lock, suppress(ValueError):
            self._contents[number] = content
        return content

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._contents.clear()


class TrackingLog:
    """The tracking log, and a cached copy of the state that follows from its entries. `catch_up` updates the state.

    Several instances may share a log. An instance is not thread-safe. However, if Dagster starts the next tick while
    one still runs, the two ticks leave no gap in the log. Instances may share the cache `past`. `entry` and `content`
    read from this cache, and add what it lacks. `catch_up` and each append add new entries to it.
    """

    def __init__(
        self, objects: ObjectStore, checkpoint_every: int, past: PastEntries | None = None, clock: Clock | None = None
    ) -> None:
        """Open the log. Each append also checks that its number was not taken by an entry that has been archived since
        the last read. With a `clock`, this check is skipped if the last read or append was less than QUICK ago."""
        self._objects = objects
        self._clock = clock
        self._seen: Moment | None = None
        """The last wall-clock time and monotonic time at which the cached state was known to be current."""
        self._archive = LogArchive(objects)
        self._witness = LogWitness(objects)
        self._is_compared = False
        self._checkpoint_every = checkpoint_every
        self._writer = uuid.uuid4().hex
        self._standing: WatermarkState | None = None
        self._tail: tuple[int, bytes] | None = None
        self._past = past or PastEntries(0)
        self._looked = Newest()
        self._looked_at: Moment | None = None
        self._judged_by = ""

    def catch_up(self) -> WatermarkState:
        """Read the entries that others have written since the last call, and return the state folded from all entries.
        Raises CorruptObject for a damaged or missing entry. The state is then incomplete, and the caller must not pull
        messages."""
        state = self._restored() if self._standing is None else self._standing
        while True:
            self._seen = self._now()
            for number, content in self._following(state.number):
                state = state.after(number, decode(content, entry_name(number)))
                self._tail, self._seen = (number, self._past.add(number, content)), self._now()
            if not self._is_overtaken(state.number):
                self._standing = state
                return state
            state = self._restored()

    def catch_up_to_append(self) -> WatermarkState:
        """Like `catch_up`, but also raise CorruptObject if entries were lost from the end of the log. Call this
        before an append."""
        # Read the witness before the log, because an entry is recorded only once it is in the log. Skip this listing if
        # the last known entry was seen less than QUICK ago.
        noted = -1 if self._is_compared and self._is_quick(self._seen) else self._witness.newest_number()
        state = self.catch_up()
        note = self._witness.newest() if noted > state.number else None
        if note is not None:
            raise errors.CorruptObject(lost_end(note, max(self.numbers(), default=-1)))
        self._is_compared = True
        return state

    def watermark_noted(self) -> datetime | None:
        """Return the watermark in the newest record of the log witness, or None if there is no record, or no watermark
        in it."""
        note = self._witness.newest()
        return None if note is None else note.watermark

    def begin(self, beginning: Beginning) -> WatermarkState:
        """Write the entry that begins the log, unless the log has begun already."""
        return self._append(lambda state: beginning if state.complete_from is None else None)

    def append(self, entry: Entry, judged_by: str = "") -> WatermarkState:
        """Write an entry durably under the next free number. `judged_by` is the contract by which the messages in the
        entry were judged. If the newest contract in the log is a different one, raise ContractReplaced and
        write nothing."""

        def build(state: WatermarkState) -> Entry:
            _refuse(judged_by, state.contract)
            if isinstance(entry, Snapshot) and not state.contract:  # no decision has stated the contract yet
                return replace(entry, contract=judged_by)
            return entry

        return self._append(build)

    def judge_by(self, contract: str) -> None:
        """State the contract by which this process judges messages. Call this before the process tracks messages.

        If the log has a different contract, the change is written to the log. The watermark then holds until the base
        subscription has passed all messages that were judged by the earlier contract. A repeated call raises
        ContractReplaced if another process has stated a different contract since the first successful call.
        """
        is_first = self._judged_by != contract

        def build(state: WatermarkState) -> Entry | None:
            if not is_first:
                _refuse(contract, state.contract)
            is_new = bool(contract and state.contract) and contract != state.contract
            return Lost("messages are judged by another contract from here on", contract=contract) if is_new else None

        self._append(build)
        self._judged_by = contract

    def refuse_other(self, contract: str) -> None:
        """Raise ContractReplaced if the newest contract in the log is not `contract`."""
        _refuse(contract, self.newest().contract)

    def decide(self, decide: Callable[[WatermarkState], DecisionRecord]) -> DecisionRecord:
        """Write the decision that `decide` makes from the state of all entries, and return it. If another writer takes
        the next number first, fold that writer's entry and call `decide` again. Raises ContractReplaced."""

        def build(state: WatermarkState) -> DecisionRecord:
            _refuse(self._judged_by, state.contract)
            return replace(decide(state), contract=self._judged_by)

        return cast("DecisionRecord", self._append(build).record)  # there is one, because `build` always returns one

    def compact_if_due(self) -> WatermarkState:
        """Write a compacted entry if at least `checkpoint_every` entries have been written since the last one. Return
        the state."""
        every = self._checkpoint_every
        return self._append(lambda state: Compacted(state) if state.number - state.checkpoint >= every else None)

    def newest(self) -> Newest:
        """Return the number of the newest entry, with the watermark, the contract and the decision at that point. The
        histogram is not restored, which makes the call cheap.

        Reads the entries since the last call. On the first call, or after many entries, lists the log and reads back to
        the newest decision or compacted entry. Raises CorruptObject if one of these entries is damaged or missing. If
        the last call was more than QUICK ago, also raises CorruptObject if the entry that it returned has been lost
        since.
        """
        seen, looks_at = self._looked, self._now()
        found = self._entries_after(seen.number) if seen.number >= 0 else None
        if found is None:
            newest = max(self.live_numbers(), default=-1)
            if newest < seen.number:
                raise self.gap(seen.number)
            back = read_back(range(newest, seen.number, -1), self._live_entry, DecisionRecord | Compacted)
            found = newest, [entry for _, entry in back][::-1]
        newest, entries = found
        watermark, contract, record = seen.watermark, seen.contract, seen.record
        for entry in entries:
            alone = WatermarkState().after(newest, entry)  # what the entry states by itself
            watermark = newest_of(watermark, alone.watermark)
            contract, record = alone.contract or contract, alone.record or record
        self._looked, self._looked_at = Newest(newest, watermark, contract, record), looks_at
        return self._looked

    def saw(self, state: WatermarkState) -> None:
        """Make the next call of `newest` skip the entries in `state`, which another instance in this process has
        already read."""
        if state.number > self._looked.number:
            self._looked = Newest(state.number, state.watermark, state.contract, state.record)

    def _entries_after(self, seen: int) -> tuple[int, list[Entry]] | None:
        """Return the number of the newest entry, and the entries after number `seen`. Return None if the caller must
        list the log instead: there are too many new entries, or some may have been archived."""
        news = islice(self._following(seen), READ_ON)
        found = [decode(content, entry_name(number)) for number, content in news]
        if len(found) == READ_ON:
            return None
        # If the previous entry was read a while ago, check whether it and the next one have moved to an archive.
        is_newest = self._is_quick(self._looked_at) or not self._is_overtaken(seen + len(found))
        return (seen + len(found), found) if is_newest else None

    def _following(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the content of each following entry. Stop at the first entry that is missing or
        archived. An entry is read only when the caller needs it."""
        with suppress(errors.ObjectMissing):
            for following in count(number + 1):
                yield following, self._objects.read(entry_name(following))

    def entry(self, number: int) -> Entry:
        """Return the entry with this number, archived or not. Raises ObjectMissing and CorruptObject."""
        try:
            return decode(self.content(number), entry_name(number))
        except errors.CorruptObject:
            self._past.clear()  # an operator may restore a backup of the entry
            raise

    def listed_entry(self, number: int) -> Entry:
        """Like `entry`, for a number between the first and the last that `numbers` returned. If the entry is missing,
        raise a CorruptObject that says what to do."""
        try:
            return self.entry(number)
        except errors.ObjectMissing:
            raise self.gap(number) from None

    def content(self, number: int) -> bytes:
        """Return the encoded entry with this number, archived or not. Raises ObjectMissing and CorruptObject."""
        if (content := self._past.get(number)) is not None:
            return content
        return self._past.add(number, self._archive.content(number) or self._live_content(number))

    def numbers(self) -> list[int]:
        """Return the numbers of all entries in order, including archived entries."""
        live = self.live_numbers()  # first, so that an entry that is moved meanwhile is found in an archive
        archived = (number for numbers in self._archive.ranges() for number in numbers)
        return sorted({*archived, *live})

    def live_numbers(self) -> list[int]:
        """Return the numbers of all entries in the log itself, in order."""
        found = (name.removeprefix(FOLDER).removesuffix(SUFFIX) for name in self._objects.names(FOLDER))
        return sorted(int(number) for number in found if number.isdigit())

    def forget(self, number: int, what: str, watermark_at_least: datetime | None = None) -> None:
        """Replace an unrepairable entry with an entry that records the loss. No tracker may run at the same time.

        The lost entry may have been the newest decision. Pass the last known watermark as `watermark_at_least`, so that
        the watermark does not go back. Raises LakeError if the entry was archived or dropped (then no tracker needs
        it), or is beyond the end of the log. Raises NewerFormat if a later version of tidemark wrote the entry.
        """
        if self._archive.covers(number) or self._is_before_log(number):
            raise errors.LakeError(
                f"entry {number} was moved to an archive under {self._objects.uri}/{ARCHIVES.prefix}, so nothing was "
                f"changed. If the archive is damaged, {ARCHIVES.damaged}"
            )
        newest, noted = max(self.numbers(), default=-1), self._witness.newest_number()
        is_end_lost = noted > newest or noted < 0 <= newest  # the notes may be lost as well
        if number > newest + is_end_lost:
            raise errors.LakeError(
                f"the log has no entry {number}: it {end_at(newest)}; nothing was changed. If the lake was "
                "restored from a copy while the pipeline ran, restart the pipeline"
            )
        with suppress(errors.ObjectMissing, errors.CorruptObject):
            self.entry(number)
        written = encode(Lost(what, watermark_at_least), self._writer)
        for kind in (WATERMARK, SENT):  # they may name a number that is used again; the next tick rewrites them
            self._objects.delete(kind.name(kind.key))
        self._objects.delete(entry_name(number))
        self._objects.create(entry_name(number), written)
        self._witness.accept_end(max(self.numbers()))
        self._standing = None
        self._past.clear()

    def _append(self, build: Callable[[WatermarkState], Entry | None]) -> WatermarkState:
        """Call `build` with the state, write the entry that it returns under the next number, and return the new state.
        If `build` returns None, write nothing. The first attempt uses the cached state. If that state is out of date,
        the next number is already taken, and the next attempt reads the log."""
        state = self._standing if self._is_compared else None
        for _ in range(ATTEMPTS):
            if state is None:
                state = self.catch_up() if self._is_compared else self.catch_up_to_append()
            read_at, tail = self._seen, self._tail
            if tail is not None and tail[0] != state.number:  # an overlapping tick in another thread has read on
                state = self._standing = None
                continue
            if (entry := build(state)) is None:
                return state
            number, content, seen = state.number + 1, encode(entry, self._writer), self._now()
            try:
                self._objects.create(entry_name(number), content)
            except errors.ObjectExists:
                state = None
                continue
            if self._was_taken(number, entry, content, tail, read_at):
                # Between our read and our write, another writer took the number and its entry was archived.
                self._objects.delete(entry_name(number))
                state = self._standing = None
                continue
            self._standing, self._tail, self._seen = state.after(number, entry), (number, content), seen
            self._past.add(number, content)
            with suppress(errors.LakeFull):  # the entry is written; the next one is recorded once there is space
                self._witness.note(number, self._standing.watermark)
            return self._standing
        raise errors.TableConflict(
            f"other writers appended to {self._objects.uri}/{FOLDER} first, {ATTEMPTS} times in a row; stop the "
            "trackers that should not run against this lake"
        )

    def _was_taken(
        self, number: int, entry: Entry, content: bytes, tail: tuple[int, bytes] | None, read_at: Moment | None
    ) -> bool:
        """Return True if another entry had this number, and was archived (or even dropped) between our read and our
        write. `tail` is the entry that we folded last, if any, and `read_at` the time of our read.

        Entries are archived oldest first, and never the newest one. The cases, in the order of the code:
        - We read less than QUICK ago: no entry was archived since.
        - There is no `tail`, so the number is 0: it was taken if there are archives, or if entry 1 is missing while
          later entries exist.
        - The previous entry exists: the number was taken if that entry differs from the one that we read.
        - An archive has the number: it was taken if the archived entry is not ours, or if the entry before it is not
          the one that we read. The entry before a compacted entry is not compared, because an archive may begin with a
          compacted entry.
        - An archive begins after the number, or the log continues after a gap: the number was taken.
        - The log continues without a gap: the number was taken, unless our entry is a compacted one. (Archives end
          before compacted entries.)
        - The log ends with our entry: the number was not taken. The gap before ours shows that an entry is lost.
        """
        if self._is_quick(read_at):
            return False
        if tail is None:
            return bool(self._archive.ranges()) or self.live_numbers()[1:2] not in ([], [1])
        with suppress(errors.ObjectMissing):
            return self._objects.read(entry_name(number - 1)) != tail[1]
        archives = self._archive.ranges()
        if any(number in numbers for numbers in archives):
            is_apart = not isinstance(entry, Compacted) and self._archive.content(number - 1) != tail[1]
            return is_apart or self._archive.content(number) != content
        newer = [one for one in self.live_numbers() if one > number]
        if any(numbers[0] > number for numbers in archives) or newer[:1] not in ([], [number + 1]):
            return True
        return bool(newer) and not isinstance(entry, Compacted)

    def _now(self) -> Moment | None:
        return None if self._clock is None else (self._clock.now(), self._clock.monotonic())

    def _is_quick(self, seen: Moment | None) -> bool:
        """Return True if `seen` is less than QUICK ago by the wall clock and by the monotonic clock. The wall clock may
        be set, and the monotonic clock may stop while the machine sleeps."""
        now = self._now()
        if now is None or seen is None:
            return False
        return abs(now[0] - seen[0]) < QUICK and now[1] - seen[1] < QUICK.total_seconds()

    def _live_entry(self, number: int) -> Entry:
        try:
            return decode(self._live_content(number), entry_name(number))
        except errors.ObjectMissing:
            raise self.gap(number) from None

    def _live_content(self, number: int) -> bytes:
        """Return the encoded entry with this number, which was in the log when it was last listed. The entry may have
        been archived since. Raises ObjectMissing."""
        try:
            return self._objects.read(entry_name(number))
        except errors.ObjectMissing:
            archived = self._archive.content(number) if self._archive.covers(number) else None
            if archived is None:
                raise
            return archived

    def _is_overtaken(self, number: int) -> bool:
        """Return True if entry `number`, the last one read, has been archived, or even deleted with its archive. Newer
        entries then exist. Raises CorruptObject if the entry is missing for any other reason, because nothing may be
        appended after a lost entry."""
        if number < 0:
            return self._is_before_all(number)
        try:
            self._objects.read(entry_name(number))
        except errors.ObjectMissing:
            if self._archive.covers(number) or self._is_before_all(number):
                return True
            raise self.gap(number) from None
        return False

    def _is_before_all(self, number: int) -> bool:
        """Return True if there are entries, and all have numbers above `number`. Entry `number` was then dropped,
        because the oldest entries are dropped first. Raises CorruptObject if all entries are in archives: after the
        last archive, the log always continues."""
        archived, live = self._archive.ranges(), self.live_numbers()
        if archived and not live:
            raise self.gap(archived[-1].stop)
        return number < min((*(numbers[0] for numbers in archived), *live), default=-1)

    def gap(self, number: int) -> errors.CorruptObject:
        """Return the error for a missing entry. If no later entry exists, the error says that the log's end is lost."""
        newest = max(self.live_numbers() or self.numbers(), default=-1)
        if newest < number:
            return errors.CorruptObject(lost_end(Note(None, number), newest))
        forget = f"run `tidemark repair --forget {number}`: the watermark then holds until base has caught up"
        without = "accept that this entry's time cannot be replayed" if self._is_before_log(number) else forget
        return errors.CorruptObject(
            f"{self._objects.uri}/{entry_name(number)} is missing from the tracking log; restore a backup, or {without}"
        )

    def _is_before_log(self, number: int) -> bool:
        """Return True if all entries up to this number were archived or dropped, and no tracker needs them: the log has
        a compacted entry."""
        live = self.live_numbers()
        return number < min(live, default=0) and any(isinstance(self._live_entry(one), Compacted) for one in live)

    def _restored(self) -> WatermarkState:
        """Return the state folded from the newest compacted entry and all later entries. If there is no compacted
        entry, fold all entries. Raises CorruptObject if a needed entry is missing."""
        if not (numbers := self.live_numbers()):
            return WatermarkState()
        state = folded_up_to(numbers[-1], self._live_entry)
        self._tail = state.number, self._live_content(state.number)
        logger.info("restored the histogram from entries %d to %d", state.checkpoint, state.number)
        return state


def folded_up_to(last: int, read: Callable[[int], Entry]) -> WatermarkState:
    """Return the state folded from all entries up to the number `last`. `read` returns an entry by number. Entries
    before the newest compacted one are not read, because a compacted entry contains the state so far."""
    state = WatermarkState()
    for number, entry in reversed([*read_back(range(last, -1, -1), read, Compacted)]):
        state = state.after(number, entry)
    return state


def read_back(
    numbers: Iterable[int], read: Callable[[int], Entry], until: type[Entry] | UnionType
) -> Iterator[tuple[int, Entry]]:
    """Read the entries with these numbers, and yield each with its number. Stop after the first entry of the class
    `until`."""
    for number in numbers:
        entry = read(number)
        yield number, entry
        if isinstance(entry, until):
            return


def _refuse(contract: str, newest: str) -> None:
    if contract and newest and contract != newest:
        raise errors.ContractReplaced(
            "this process and the one that last started on this lake judge messages by different contracts. The "
            "messages that this process has pulled will be redelivered. Just after a start with changed settings, wait "
            "for the next tick of the sensor `tracking`. Otherwise, restart this process with the [message] settings "
            "and the tidemark version of the other process"
        )


def entry_name(number: int) -> str:
    """Return the name of the object for the log entry with this number."""
    return f"{FOLDER}{number:012d}{SUFFIX}"
