"""The broken parts that are planted: each says by its name what it does wrong."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tests.simulation.faults import (
    aged,
    both,
    budgeted,
    by_frontier,
    dropped,
    in_avro,
    in_json,
    in_rounds,
    kept,
    often_compacted,
    packed,
    plant,
    real_codec,
    two_runners,
    two_trackers,
)
from tests.simulation.lake import Row
from tests.simulation.micro_batch import Computed, Diff, MicroBatch, rows_of
from tests.simulation.plan import WINDOWING
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.heartbeat import PATIENCE, HeartbeatReader
from tidemark.pipeline.contract.judging import judge
from tidemark.pipeline.contract.payloads import decoder
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import Asking
from tidemark.pipeline.errors import ObjectExists, ReadingPostponed, ReadingUnavailable
from tidemark.pipeline.ingest import take
from tidemark.pipeline.ingest.counting import RememberedCopies, keys_of
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.log import codec as log_codec
from tidemark.pipeline.lake.log import tracking_log
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.log.tracking_log import Newest, TrackingLog, entry_name
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.watermark.histogram import Histogram, Ints
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Entry, WatermarkState
from tidemark.pipeline.windows import Window

LAKE = "tests.simulation.lake"

# The order of a tick


class Early:
    """A subscription whose messages are acknowledged as soon as they are pulled or held."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription
        self.path, self.pause, self.give_back = subscription.path, subscription.pause, subscription.give_back

    def pull(self, *bounds: Any) -> Any:
        batch = self._subscription.pull(*bounds)
        self.hold(batch.ack_ids)
        return batch

    def hold(self, ack_ids: Sequence[str]) -> None:
        if ack_ids:
            self._subscription.acknowledge(ack_ids)

    def acknowledge(self, _ack_ids: Sequence[str]) -> Acknowledged:
        return Acknowledged()


def on(broken: Callable[[Any], Any], settling: Settling) -> Settling:
    """As it is, but on broken subscriptions."""
    return replace(settling, subscriptions={side: broken(one) for side, one in settling.subscriptions.items()})


@plant("remembered before it is persisted", "copies", 160, kept)
class RememberedTooSoon(RememberedCopies):
    """What an attempt has counted is remembered, whatever becomes of its entry."""

    def note(self, keys: Ints, publish_us: Ints) -> str:
        attempt = super().note(keys, publish_us)
        self.settle({attempt})
        return attempt


@plant("readers remember no copy", "copies", 19, in_rounds, about="rounds")
class NeverRemembered(RememberedCopies):
    """What was settled is not remembered."""

    def settle(self, attempts: Any) -> None: ...


@plant("tracking counts what is too old", "tidemark.pipeline.ingest.counting.judge", 0, aged, about="ages")
def judge_whatever_the_age(messages: Any, decoded: Any, reader: HeartbeatReader) -> Any:
    """Tracking judges as if no message were too old."""
    return judge(messages, decoded, HeartbeatReader(replace(reader.contract, max_age=None)))


class Late:
    """A subscription whose batches are acknowledged when the tick has read T."""

    def __init__(self, subscription: Any, backlog: Any) -> None:
        self._subscription, self._backlog = subscription, backlog
        self.path, self.pull, self.hold = subscription.path, subscription.pull, subscription.hold
        self.pause, self.give_back = subscription.pause, subscription.give_back
        self._pulled: list[str] = []

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        self._pulled += ack_ids
        return Acknowledged()

    def read(self) -> Reading:
        try:
            return self._backlog.read()  # type: ignore[no-any-return]
        finally:
            if self._pulled:
                self._subscription.acknowledge(self._pulled)


class Remembered:
    """A backlog that was read when this was made."""

    def __init__(self, backlog: Any) -> None:
        self._problem: ReadingUnavailable | None = None
        try:
            self._reading = backlog.read()
        except ReadingUnavailable as problem:
            self._problem = problem

    def read(self) -> Reading:
        if self._problem is not None:
            raise self._problem
        return self._reading  # type: ignore[no-any-return]


@plant("tracking is acknowledged before it is persisted", "track")
def track_acknowledging_first(settling: Settling, *others: Any, **more: Any) -> Any:
    return track(on(Early, settling), *others, **more)


@plant("base is acknowledged before it has landed", "land")
def land_acknowledging_first(settling: Settling, *others: Any) -> Any:
    return land(on(Early, settling), *others)


@plant("T is read before what was persisted is acknowledged", "track", 3)
def track_reading_before_acknowledging(settling: Settling, backlogs: Any, *others: Any, **more: Any) -> Any:
    late = Late(settling.subscriptions[Side.TRACKING], backlogs[Side.TRACKING])
    return track(on(lambda _: late, settling), {**backlogs, Side.TRACKING: late}, *others, **more)


@plant("T and B are read before anything is pulled", "track", 3)
def track_reading_before_pulling(settling: Settling, backlogs: Any, *others: Any, **more: Any) -> Any:
    return track(settling, {side: Remembered(backlogs[side]) for side in Side}, *others, **more)


@plant("the log is not listed again", "log.decide", 1, two_trackers)
def decide_on_what_is_known(log: TrackingLog, decide: Callable[[WatermarkState], DecisionRecord]) -> DecisionRecord:
    record = decide(log._standing or log.catch_up())
    log.append(record)
    return record


class AsItWas:
    """A log at which a process looked once."""

    def __init__(self, log: TrackingLog) -> None:
        self._seen = log._looked if log._looked.number >= 0 else log.newest()
        self.refuse_other = log.refuse_other

    def newest(self) -> Newest:
        return self._seen


@plant("late is judged by what was known before", "land", 1)
def land_without_looking_again(settling: Settling, *others: Any) -> Any:
    return land(replace(settling, log=AsItWas(settling.log)), *others)  # type: ignore[arg-type]


class Forgetful:
    """A table that says that it has everything, and keeps nothing."""

    def write(self, rows: Any) -> list[NewFile]:
        return [NewFile("nowhere", "", len(rows), 0, {})]

    def add(self, files: Any, says: Any) -> None: ...


@plant("a tick reports nothing late", "land", 9)
def land_reporting_nothing_late(*others: Any) -> Any:
    return replace(land(*others), late=0)


@plant("what is rejected is not kept", "land")
def land_without_quarantine(settling: Settling, *others: Any) -> Any:
    return land(replace(settling, tables=(settling.tables[0], Forgetful())), *others)  # type: ignore[arg-type]


# The log


@plant("who loses a number loses its entry", "log._append", 4, two_trackers)
def append_once(log: TrackingLog, build: Callable[[WatermarkState], Any]) -> WatermarkState:
    """A writer that loses a number gives up silently."""
    state = log.catch_up()
    entry = build(state)
    if entry is not None:
        with suppress(ObjectExists):
            log._objects.create(entry_name(state.number + 1), tracking_log.encode(entry, log._writer))
    return log.catch_up()


@plant("old entries are deleted and not archived", "packing._move", 5, packed)
def move_without_an_archive(packing: LogPacking, entries: dict[int, bytes]) -> None:
    """What is old is deleted, as if it were archived."""
    for number in sorted(entries):
        packing._objects.delete(entry_name(number))


@plant("old entries are deleted and then archived", "packing._move", 19, packed)
def move_deleting_first(packing: LogPacking, entries: dict[int, bytes]) -> None:
    for number in sorted(entries):
        packing._objects.delete(entry_name(number))
    packing._keep(entries)


@plant("what was archived is deleted from the newest on", "packing._move", 47, packed)
def move_from_the_newest_on(packing: LogPacking, entries: dict[int, bytes]) -> None:
    """A reader that has read one of the oldest entries finds nothing after it."""
    packing._keep(entries)
    for number in sorted(entries, reverse=True):
        packing._objects.delete(entry_name(number))


@plant("an archived number is taken", "log._append", 88, both(two_trackers, packed))
def append_where_it_was_archived(log: TrackingLog, build: Callable[[WatermarkState], Any]) -> WatermarkState:
    """A number that is free is taken, also where its entry was archived."""
    while True:
        state = log.catch_up()
        entry = build(state)
        if entry is None:
            return state
        for _ in range(5):  # time passes between the look and the write
            log.live_numbers()
        with suppress(ObjectExists):
            log._objects.create(entry_name(state.number + 1), tracking_log.encode(entry, log._writer))
            log._standing = state.after(state.number + 1, entry)
            return log._standing


NEWEST = TrackingLog.newest


@plant("a run reads the oldest decision", "log.newest")
def oldest_decision(log: TrackingLog) -> Newest:
    decided = (entry for entry in map(log.entry, log.numbers()) if isinstance(entry, DecisionRecord))
    return replace(NEWEST(log), record=next(decided, None))


@plant("archives are listed before the log", "log.numbers", 487, packed)
def numbers_by_archives_first(log: TrackingLog) -> list[int]:
    """What moves to an archive meanwhile is in neither list."""
    archived = [number for numbers in log._archive.ranges() for number in numbers]
    return sorted({*archived, *log.live_numbers()})


@plant("a dropped number is taken", "log._was_taken", 1167, both(two_trackers, dropped), about="drops")
def taken_if_it_is_archived(log: TrackingLog, number: int, _entry: Entry, _content: bytes) -> bool:
    """A number that was archived, and dropped, is taken again."""
    return log._archive.covers(number)


@plant("an entry is taken back", "log._was_taken", 563, packed)
def taken_if_the_one_before_has_moved(log: TrackingLog, number: int, _entry: Entry, _content: bytes) -> bool:
    """An entry is taken back where the one before has moved since it was written."""
    if number == 0:
        return original_was_taken(log, number, _entry, _content)
    return entry_name(number - 1) not in log._objects.names(tracking_log.FOLDER)


@plant("who was overtaken does not notice", "log._is_overtaken", 5, packed)
def never_overtaken(_log: TrackingLog, _number: int) -> bool:
    return False


@plant("a restart forgets the histogram", "log._restored")
def restored_without_cells(log: TrackingLog) -> WatermarkState:
    return replace(original_restored(log), histogram=Histogram.empty())


@plant("an empty log is a new one", "log._is_overtaken", 135, packed)
def begun_anew_where_all_was_archived(log: TrackingLog, number: int) -> bool:
    """A reader that has read nothing, and finds no first entry, takes the log for a new one."""
    return number >= 0 and original_is_overtaken(log, number)


@plant("a checkpoint of what was known before", "log.compact_if_due", 11, two_trackers)
def compact_what_was_known(log: TrackingLog) -> WatermarkState:
    """What another tracker appends meanwhile is not in the compacted entry, and comes before it."""
    state = log.catch_up()
    is_due = state.number - state.checkpoint >= log._checkpoint_every
    return log.append(Compacted(state)) if is_due else state


@plant("a checkpoint is read without the frontier", f"{LAKE}.log_codec.decode", 475, both(by_frontier, real_codec))
def decode_without_the_frontier(content: bytes, name: str) -> Entry:
    entry = original_decode(content, name)
    return Compacted(replace(entry.state, pruned_frontier=None)) if isinstance(entry, Compacted) else entry


@plant("a checkpoint forgets the frontier", "log.compact_if_due", 224, both(by_frontier, often_compacted))
def compact_without_the_frontier(log: TrackingLog) -> WatermarkState:
    state = log.catch_up()
    is_due = state.number - state.checkpoint >= log._checkpoint_every
    return log.append(Compacted(replace(state, pruned_frontier=None))) if is_due else state


original_restored, original_is_overtaken = TrackingLog._restored, TrackingLog._is_overtaken
original_was_taken = TrackingLog._was_taken
original_decode = log_codec.decode


class TakenForEmpty:
    """A backlog whose reading this problem prevents is taken for an empty one."""

    def __init__(self, backlog: Any, problem: type[Exception], clock: Clock) -> None:
        self._backlog, self._problem, self._clock = backlog, problem, clock

    def read(self) -> Reading:
        try:
            return self._backlog.read()  # type: ignore[no-any-return]
        except self._problem:
            now = self._clock.now()
            return Reading(observed_at=now, oldest_unacked=now, names_a_message=False)


@plant("unknown is nothing outstanding", "track", 10, kept)
def track_taking_unknown_for_empty(
    settling: Settling, backlogs: Any, *others: Any, problem: type[Exception] = ReadingUnavailable, **more: Any
) -> Any:
    both = {side: TakenForEmpty(backlogs[side], problem, settling.clock) for side in Side}
    return track(settling, both, *others, **more)


plant("a reading put off is nothing outstanding", "track", 81, budgeted, about="budgets")(
    partial(track_taking_unknown_for_empty, problem=ReadingPostponed)
)


# The micro-batch


@plant("copies are kept", "micro_batch")
class CopiesKept(MicroBatch):
    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        own = [{**row, "publisher_id": None, "message_id": f"{row['message_id']}/{n}"} for n, row in enumerate(rows)]
        return rows_of(window, own)


@plant("copies of one publisher are kept", "micro_batch")
class CopiesByMessage(MicroBatch):
    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        return rows_of(window, [{**row, "publisher_id": None} for row in rows])


@plant("of copies the one that landed first", "micro_batch")
class AnyCopy(MicroBatch):
    """The copy that comes first stays."""

    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        first: dict[Any, Row] = {}
        for row in rows:
            first.setdefault((row["stream_id"], row["event_time"], row["publisher_id"] or row["message_id"]), row)
        return rows_of(window, first.values())


@plant("windows above the watermark", "micro_batch")
class Ahead(MicroBatch):
    def wanted(self, watermark: datetime | None, now: datetime) -> Sequence[Window]:
        return super().wanted(None if watermark is None else watermark + WINDOWING.length, now)


@plant("a run reads the version that it knew", "micro_batch")
class NotLoadedAgain(MicroBatch):
    """The table's version is that of the run before."""

    seen = 0

    def listed(self) -> int:
        seen, self.seen = self.seen, self.heartbeats.version
        return seen


@plant("no fence", "micro_batch", 48, two_runners)
class Unfenced(MicroBatch):
    """A commit adds to the rows that are there by now, as first computations do where commits are retried blindly."""

    def replace(self, fence: dict[Window, Computed | None], computed: dict[Window, Computed]) -> list[Window]:
        for window, ours in computed.items():
            there = self.diffs.windows.get(window)
            rows = ours.rows if there is None or there is fence[window] else there.rows + ours.rows
            self.diffs.windows[window] = replace(ours, rows=rows)
        return []


# Payloads, and what is counted

DECODER = "tidemark.pipeline.contract.payloads.decoder"
INFLATED = 100
"""Bytes that a batch may have."""

original_inflated = decoder._Room.inflated


@plant("a verdict depends on the batch", f"{DECODER}._Room.inflated", 20, in_json, about="payloads")
def inflated_within_a_batch(room: Any, data: bytes) -> bytes:
    """What comes after so many bytes of a batch is rejected."""
    content = original_inflated(room, data)
    if room.left < decoder.PART_BYTES - INFLATED:
        raise Unreadable("too much of this batch is compressed")
    return content


@plant("nobody waits for a revision", "tidemark.pipeline.ingest.take.Asking", 34, in_avro, about="payloads")
def asking_without_patience(at_us: int, _patience_us: int) -> Asking:
    return Asking(at_us, 0)


@plant("tracking loses patience with base", "tidemark.pipeline.ingest.ticks.Tracking", 34, in_avro, about="payloads")
def tracking_with_the_patience_of_base(*parts: Any) -> take.Tracking:
    return take.Tracking(*parts, patience=PATIENCE)


@plant("who waits goes on waiting", "tidemark.pipeline.ingest.take.seconds_of", 34, in_avro, about="payloads")
def wait_as_long_as_before(waited: timedelta, _patience: timedelta) -> int:
    """However soon the message's patience ends."""
    return int(max(timedelta(seconds=5), waited).total_seconds())


plant("copies are told by their id alone", "tidemark.pipeline.ingest.counting.keys_of", 3, kept)(
    lambda _streams, ids, _event_us, _data: keys_of(ids, ids, [0] * len(ids))
)
plant("who was away for long takes the log for damaged", "log._is_before_all", 9, dropped, about="drops")(
    lambda *_: False
)
plant("missed messages are not counted", "tests.simulation.oracle.missed", 9)(lambda *_: {})
