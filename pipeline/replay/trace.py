"""Traces: published messages with the times at which they were acknowledged on each subscription. Also computes the
ticks that a pipeline would have made on a trace.

A trace is read several times, in batches. Only a histogram and a few numbers per tick stay in memory. So memory is
proportional to the time that the trace covers, not to the number of its messages.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us, format_duration, from_us, to_us
from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.watermark.histogram import BUCKET_US, MERGES, NO_MINIMUM, Histogram, Ints, cells_of, grouped
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Entry, Snapshot

FEWEST_ROWS_TO_MERGE = 1 << 17
"""Minimum number of new rows that `Totals` collects before it merges them into its table. If the table is larger than
that, `Totals` waits for as many new rows as the table has. A merge rewrites the whole table, so it must be rare."""


class Totals:
    """A table of int64 columns with one row per key. The first `keys` columns are the key. If several rows with the
    same key are added, the functions in `merges` combine their other columns. By default, the only other column is a
    count, and counts add up."""

    def __init__(self, keys: int, merges: Sequence[np.ufunc] = (np.add,)) -> None:
        self._merges = merges
        self._parts = [list(np.empty((keys + len(merges), 0), dtype=np.int64))]  # the table, then waiting batches
        self._waiting = 0

    def add(self, *columns: Ints) -> None:
        """Add rows. Each argument is a column, and all have the same length."""
        self._parts.append(grouped(columns, self._merges))
        self._waiting += len(self._parts[-1][0])
        if self._waiting > max(len(self._parts[0][0]), FEWEST_ROWS_TO_MERGE):
            self.rows()

    def count(self, *keys: Ints) -> None:
        """Add a row with the count 1 for each element of the key columns."""
        self.add(*keys, np.ones_like(keys[0]))

    def rows(self) -> list[Ints]:
        """Return the rows, sorted by key, as one array per column."""
        if len(self._parts) > 1:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            self._parts, self._waiting = [grouped(joined, self._merges)], 0
        return self._parts[0]

    def groups(self) -> Iterator[tuple[int, list[Ints]]]:
        """Yield each value of the first column, in ascending order. With each value, yield the other columns of the
        rows that have this value."""
        first, *others = self.rows()
        present, starts = np.unique(first, return_index=True)
        for value, (low, high) in zip(present.tolist(), pairwise([*starts.tolist(), len(first)]), strict=True):
            yield value, [column[low:high] for column in others]


NO_EVENT_TIME = NO_MINIMUM
"""The event time of a rejected message in a Batch."""

NEVER = np.iinfo(np.int64).max
"""Stands for the time of an acknowledgement that never happened, in a Batch."""

NO_WATERMARK = np.iinfo(np.int64).min
"""Stands for the watermark before the first one. No event time is below this number."""

MOST_TICKS = 2_000_000
"""Maximum number of ticks per trace. If there are more, a time in the trace is probably wrong, or the tick interval is
too short."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages of a trace, in any order. Times are int64 arrays of equal length, in microseconds since the epoch.

    `event_us` is NO_EVENT_TIME for a rejected message. `tracked_us` is the time at which the message was acknowledged
    on the tracking subscription, and `landed_us` is the same for the base subscription. Each may be NEVER. `streams` is
    an Arrow array of text: the stream of each message, or null for a message without a stream. It is None if the caller
    did not ask for streams.
    """

    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    streams: Any = None

    def __len__(self) -> int:
        return len(self.publish_us)

    def valid(self) -> "Batch":
        """Return the messages of the batch that were not rejected."""
        kept = self.event_us != NO_EVENT_TIME
        return self if kept.all() else self.where(kept)

    def where(self, kept: npt.NDArray[np.bool_]) -> "Batch":
        """Return the messages for which the mask `kept` is true."""
        times = (self.publish_us, self.event_us, self.tracked_us, self.landed_us)
        publish_us, event_us, tracked_us, landed_us = (column[kept] for column in times)
        streams = None if self.streams is None else self.streams.filter(pa.array(kept))
        return Batch(publish_us, event_us, tracked_us, landed_us, streams)


class Trace(Protocol):
    """A source of messages that can be read several times."""

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Yield all messages, each once. If `streams` is true, batches have the stream of each message, which takes
        more time."""
        ...


@dataclass(frozen=True, slots=True)
class Tick:
    """The input of a decision at the time `at`: the log entries since the previous decision, and the readings of
    both subscriptions (None if unknown). `recorded` is the decision itself, if the tick was read from a log."""

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: DecisionRecord | None = None


@dataclass(frozen=True, slots=True)
class CohortKey:
    """A key by which messages are grouped into cohorts. `kind` and `name` have these values:

    - `stream`: the id of the stream. There is no name.
    - `attribute` and the name of an attribute. A Pub/Sub filter can select a cohort: `attributes.NAME = "value"`.
    - `stream_prefix` and a separator: the stream's id up to and including its first separator. If the stream's id is an
      attribute, a Pub/Sub filter can select a cohort: `hasPrefix(attributes.stream_id, "prefix")`.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def column(self, names: Collection[str]) -> str:
        """Return the name of the column that has the key. `names` are the names of all columns. An attribute is read
        from `attributes` if this column exists, and otherwise from the column with the attribute's name."""
        return "stream_id" if self.kind != "attribute" else "attributes" if "attributes" in names else self.name

    def values(self, column: Any) -> Any:
        """Return each message's key, or null if it has none. The argument has the values of one column of the trace:
        the column whose name `CohortKey.column` returns."""
        if pa.types.is_map(column.type):
            return pc.map_lookup(column, self.name, "first")
        if self.kind == "stream":
            return column
        text = column.cast(pa.string())
        if self.kind == "attribute":
            return text
        before = pc.list_element(pc.split_pattern(text, self.name, max_splits=1), 0)
        prefix = pc.binary_join_element_wise(before, self.name, "")
        return pc.if_else(pc.match_substring(text, self.name), prefix, pa.scalar(None, pa.string()))


BY_STREAM = CohortKey("stream")


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a trace: the number of messages in total and per category, and the first and the last time. `last_us`
    is the time of the last publish or acknowledgement.

    `acknowledged_early` is the number of messages that were acknowledged before their publish time, because clocks
    disagree.
    """

    messages: int
    rejected: int
    never_tracked: int
    never_landed: int
    acknowledged_early: int
    first_publish_us: int
    last_us: int


def extent_of(trace: Trace) -> Extent:
    """Return the extent of a trace. Reads the trace once. Raises TraceUnusable if the trace has no messages."""
    messages = rejected = never_tracked = never_landed = early = 0
    first, last = NEVER, NO_WATERMARK
    for batch in trace.batches():
        messages += len(batch)
        rejected += int(np.count_nonzero(batch.event_us == NO_EVENT_TIME))
        never_tracked += int(np.count_nonzero(batch.tracked_us == NEVER))
        never_landed += int(np.count_nonzero(batch.landed_us == NEVER))
        early += int(np.count_nonzero(np.minimum(batch.tracked_us, batch.landed_us) < batch.publish_us))
        first = int(batch.publish_us.min(initial=first))
        for moments in (batch.publish_us, batch.tracked_us, batch.landed_us):
            last = int(moments.max(initial=last, where=moments != NEVER))
    if not messages:
        raise TraceUnusable("the trace has no messages; it needs at least one, with its publish_time")
    return Extent(messages, rejected, never_tracked, never_landed, early, first, last)


def tick_times(first_publish_us: int, last_us: int, tick: timedelta, idle_timeout: timedelta) -> Ints:
    """Return the times of the ticks for a trace, at the interval `tick`. The first tick is one interval after the start
    of the first publish second. The last tick is about `idle_timeout` and two intervals after `last_us`.
    Raises TraceUnusable if there are more than MOST_TICKS."""
    interval = duration_us(tick)
    begin = first_publish_us // BUCKET_US * BUCKET_US + interval
    end = last_us + duration_us(idle_timeout) + 2 * interval
    count = (end - begin) // interval + 1
    if count > MOST_TICKS:
        raise TraceUnusable(
            f"the trace spans {count:,} ticks of {format_duration(tick)}, but at most {MOST_TICKS:,} are allowed. It "
            f"lasts from {from_us(first_publish_us).isoformat()} to {from_us(last_us).isoformat()}, plus the idle "
            f"timeout of {format_duration(idle_timeout)}; correct times in it that are far from the others, or use a "
            "longer tick or a shorter idle timeout (--tick and --idle-timeout of a replay, [watermark] in the settings)"
        )
    return begin + interval * np.arange(count, dtype=np.int64)


def ticks_of(
    trace: Trace,
    tick: timedelta,
    idle_timeout: timedelta,
    complete_from: datetime | None = None,
    extent: Extent | None = None,
) -> list[Tick]:
    """Return the ticks for a trace. A tick has the histogram of the messages that tracking acknowledged since the
    previous tick, and readings of both subscriptions.

    A reading is the earliest publish time of the messages that are published but not acknowledged at the tick. If there
    is no such message, it is the time of the tick. `complete_from` is the first publish time by default. Giving the
    `extent` of the trace saves reading the trace once more. Raises TraceUnusable like `extent_of` and `tick_times`.
    """
    extent = extent_of(trace) if extent is None else extent
    tick_us = tick_times(extent.first_publish_us, extent.last_us, tick, idle_timeout)
    return ticks_at(trace, tick_us, tick_us, complete_from or from_us(extent.first_publish_us))


def ticks_at(trace: Trace, tick_us: Ints, observed_us: Ints, complete_from: datetime) -> list[Tick]:
    """Return the ticks for a trace at the times `tick_us`, which are ascending. `observed_us` contains the time of each
    tick's readings. If the readings of an earlier tick have a later time, that time is used instead. A time after its
    own tick is replaced with the tick's time."""
    observed_us = np.minimum(np.maximum.accumulate(observed_us), tick_us)
    landed_us, read_us = np.full((2, len(tick_us) + 1), NEVER)
    deltas = Totals(3, MERGES)  # by tick, publish bucket and event bucket
    for batch in trace.batches():
        tracked = first_tick_at(tick_us, batch.tracked_us)
        np.minimum.at(landed_us, first_tick_at(observed_us, batch.landed_us), batch.publish_us)
        np.minimum.at(read_us, first_tick_at(observed_us, batch.tracked_us), batch.publish_us)
        seen = tracked < len(tick_us)
        deltas.add(*cells_of(batch.publish_us[seen], batch.event_us[seen], tracked[seen]))
    entries: list[list[Entry]] = [[] for _ in tick_us]
    entries[0].append(Beginning(complete_from))
    for number, cells in deltas.groups():
        entries[number].append(Snapshot(Histogram.of_cells(cells)))
    readings = zip(tick_us, entries, _readings(landed_us, observed_us), _readings(read_us, observed_us), strict=True)
    return [Tick(from_us(int(at)), tuple(new), base, tracking) for at, new, base, tracking in readings]


def first_tick_at(tick_us: Ints, moments: Ints) -> Ints:
    """Return the index of the first tick at or after each moment; the number of ticks if there is none."""
    return np.searchsorted(tick_us, moments, side="left").astype(np.int64)


def late_landings(trace: Trace, made_us: Ints, watermarks_us: Ints) -> tuple[Ints, int]:
    """Count the late messages of a trace at each tick, and all messages that landed by the last tick and were not
    rejected. Reads the trace once.

    `made_us` are the times of the ticks. Each row of `watermarks_us` has the watermark at each tick, or NO_WATERMARK.
    The late messages are an array of the same shape: a message counts at the first tick at or after its landing. It is
    late if its event time is below the watermark of the last tick strictly before it landed. If the clocks of two
    trackers disagree, a tick's time may be before the previous tick's. Such a tick counts as made at the latest time so
    far.
    """
    tick_us = np.maximum.accumulate(made_us)
    before_landing = np.pad(watermarks_us, ((0, 0), (1, 0)), constant_values=NO_WATERMARK)
    highest = before_landing.max(axis=0)
    late, landed = np.zeros_like(watermarks_us), 0
    for batch in trace.batches():
        landing = first_tick_at(tick_us, batch.landed_us)
        has_landed = landing < len(tick_us)
        some = has_landed & (batch.event_us < highest[landing])  # most messages are above the watermark of every row
        event_us, late_at = batch.event_us[some], landing[some]
        for count, own in zip(late, before_landing, strict=True):
            np.add.at(count, late_at[event_us < own[late_at]], 1)
        landed += int(np.count_nonzero(has_landed & (batch.event_us != NO_EVENT_TIME)))
    return late, landed


def _readings(least_publish_us: Ints, tick_us: Ints) -> list[Reading]:
    """Return the readings of a subscription, one per tick. `least_publish_us` has, for each tick, the earliest publish
    time of the messages that were acknowledged since the previous tick. An additional last element is for messages
    acknowledged after the last tick.

    The oldest unacknowledged message at a tick is the first published of all messages that are acknowledged after the
    tick. If this message was published only after the tick, no message was unacknowledged.
    """
    later_us = np.minimum.accumulate(least_publish_us[::-1])[::-1][1:]
    return [
        Reading(observed_at=from_us(tick), oldest_unacked=from_us(min(tick, oldest)), names_a_message=oldest <= tick)
        for tick, oldest in zip(tick_us.tolist(), later_us.tolist(), strict=True)
    ]


def watermarks_us(watermarks: Sequence[datetime | None]) -> Ints:
    """Return watermarks in microseconds, with NO_WATERMARK for None."""
    return np.array([NO_WATERMARK if moment is None else to_us(moment) for moment in watermarks], dtype=np.int64)
