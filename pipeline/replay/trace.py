"""Traces of published messages, with the times of their acknowledgement on both subscriptions, and the ticks of a run
over a trace.

A trace is read in batches, a few times. Only a histogram and a few numbers per tick stay in memory, so memory depends
on the time that the trace spans, not on the number of its messages.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us, format_duration, from_us, to_us
from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.watermark.histogram import BUCKET_US, MERGES, NO_MINIMUM, Histogram, Ints, cells_of, grouped
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Entry, Snapshot

FEWEST_ROWS_TO_MERGE = 1 << 17
"""Minimum number of waiting rows that Totals merges. They are merged only once there are also more of them than merged
rows, so that merging stays cheap."""


class Totals:
    """A table of int64 columns with one row per key. The first `keys` columns are the key. If rows with the same key
    are added, each other column is combined by the column's function in `merges`."""

    def __init__(self, keys: int, merges: Sequence[np.ufunc]) -> None:
        self._merges = merges
        self._parts = [list(np.empty((keys + len(merges), 0), dtype=np.int64))]  # the table, then waiting batches
        self._waiting = 0

    def add(self, *columns: Ints) -> None:
        """Add rows, given as columns of equal length."""
        self._parts.append(grouped(columns, self._merges))
        self._waiting += len(self._parts[-1][0])
        if self._waiting > max(len(self._parts[0][0]), FEWEST_ROWS_TO_MERGE):
            self.rows()

    def rows(self) -> list[Ints]:
        """Return the rows, in the order of their keys, as columns."""
        if len(self._parts) > 1:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            self._parts, self._waiting = [grouped(joined, self._merges)], 0
        return self._parts[0]

    def groups(self) -> Iterator[tuple[int, list[Ints]]]:
        """Yield each value of the first column, in order, with the other columns of its rows."""
        first, *others = self.rows()
        present, starts = np.unique(first, return_index=True)
        for value, (low, high) in zip(present.tolist(), pairwise([*starts.tolist(), len(first)]), strict=True):
            yield value, [column[low:high] for column in others]


COUNTS = (np.add,)


class Tally:
    """For each group, the number of times that each value was added."""

    def __init__(self) -> None:
        self._cells = Totals(2, COUNTS)

    def add(self, groups: Ints, values: Ints) -> None:
        """Add values to groups, given as two arrays of equal length: `values[i]` is added to `groups[i]`."""
        self._cells.add(groups, values, np.ones_like(values))

    def whole(self) -> tuple[Ints, Ints]:
        """Return the values and their counts in all groups together, in the order of the values."""
        _, *cells = self._cells.rows()
        values, counts = grouped(cells, COUNTS)
        return values, counts

    def of(self, group: int) -> tuple[Ints, Ints]:
        """Return the values of one group and their counts, in the order of the values."""
        groups, values, counts = self._cells.rows()
        own = slice(*np.searchsorted(groups, [group, group + 1]).tolist())
        return values[own], counts[own]

    def groups(self) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield each group, in order, with its values and their counts."""
        for group, (values, counts) in self._cells.groups():
            yield group, values, counts


NO_EVENT_TIME = NO_MINIMUM
"""The event time that stands for "rejected" in a Batch."""

NEVER = np.iinfo(np.int64).max
"""The time that stands for "never acknowledged" in a Batch."""

NO_WATERMARK = np.iinfo(np.int64).min
"""The time that stands for "no watermark yet". No event time is below this number."""

MOST_TICKS = 2_000_000
"""Maximum number of ticks per trace. If a trace needs more, one of its times is far from the others, or the tick
interval is too short."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages of a trace, in any order: four int64 arrays of equal length, in microseconds since the epoch.

    `event_us` is NO_EVENT_TIME for a rejected message. `tracked_us` and `landed_us` are the times at which the
    message's acknowledgement on tracking and on base took effect, or NEVER. `streams` has the stream of each message
    (null for a message without a stream); it is None if streams were not requested.
    """

    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    streams: pa.DictionaryArray | None = None

    def __len__(self) -> int:
        return len(self.publish_us)

    def valid(self) -> "Batch":
        """Return the batch without rejected messages."""
        kept = self.event_us != NO_EVENT_TIME
        if kept.all():
            return self
        times = (self.publish_us, self.event_us, self.tracked_us, self.landed_us)
        publish_us, event_us, tracked_us, landed_us = (column[kept] for column in times)
        streams = None if self.streams is None else self.streams.filter(pa.array(kept))
        return Batch(publish_us, event_us, tracked_us, landed_us, streams)


class Trace(Protocol):
    """A source of messages that can be read repeatedly."""

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Yield all messages, each once. `streams` requests their streams, which costs time."""
        ...


@dataclass(frozen=True, slots=True)
class Tick:
    """The input of a decision made at `at`: the log entries since the previous decision, and the readings of both
    subscriptions (None if unknown). If the tick was read from a log, `recorded` is the decision in the log."""

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: DecisionRecord | None = None


@dataclass(frozen=True, slots=True)
class CohortKey:
    """A key that groups messages into cohorts. There are three kinds:

    `stream`: the stream's id.
    `attribute:NAME`: the attribute NAME. A Pub/Sub filter can select by it: `attributes.NAME = "value"`.
    `stream_prefix:SEPARATOR`: the stream's id up to and including its first SEPARATOR. If the stream's id is an
    attribute, a filter can select by the prefix: `hasPrefix(attributes.stream_id, "prefix")`.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def column(self, names: Collection[str]) -> str:
        """Return the name of the column that contains the key, given the `names` of all columns: `stream_id` or, for an
        attribute, `attributes` if it exists, else the column with the attribute's name."""
        return "stream_id" if self.kind != "attribute" else "attributes" if "attributes" in names else self.name

    def values(self, column: Any) -> Any:
        """Return the key's value in each row (null if a message has none), given the content of the column that the
        method `column` names."""
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
    """The number of messages in a trace, in all and by category, and the first and last time. `last_us` is the time of
    the last publication or acknowledgement.

    `acknowledged_early` is the number of messages that were acknowledged before their publish time, on either
    subscription, because clocks disagree. Such a message counts as tracked or landed from its acknowledgement on.
    """

    messages: int
    rejected: int
    never_tracked: int
    never_landed: int
    acknowledged_early: int
    first_publish_us: int
    last_us: int


def extent_of(trace: Trace) -> Extent:
    """Return the extent of a trace, which takes one pass. Raises TraceUnusable if the trace has no message."""
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
    """Return the times of the ticks of a run over a trace, at the interval `tick`. The first tick is one interval after
    the first publish time (rounded down to the second), the last about one idle timeout and two intervals after
    `last_us`. Raises TraceUnusable if there are more than MOST_TICKS."""
    interval = duration_us(tick)
    begin = first_publish_us // BUCKET_US * BUCKET_US + interval
    end = last_us + duration_us(idle_timeout) + 2 * interval
    count = (end - begin) // interval + 1
    if count > MOST_TICKS:
        raise TraceUnusable(
            f"from {from_us(first_publish_us).isoformat()} to {from_us(last_us).isoformat()} the trace spans {count:,} "
            f"ticks of {format_duration(tick)}, more than {MOST_TICKS:,}; use a longer tick (--tick of a replay, "
            "watermark.tick in the settings), or look for a time that is far from the others"
        )
    return begin + interval * np.arange(count, dtype=np.int64)


def ticks_of(
    trace: Trace,
    tick: timedelta,
    idle_timeout: timedelta,
    complete_from: datetime | None = None,
    extent: Extent | None = None,
) -> list[Tick]:
    """Return the ticks of a run over a trace. Each tick has the histogram of the messages that were acknowledged on
    tracking since the previous tick, and readings of both subscriptions.

    A subscription's reading at time t is the least publish time of the messages published by t but not acknowledged by
    t. Without such a message, the reading is t. `complete_from` defaults to the first publish time. Passing a known
    `extent` saves a pass over the trace.
    """
    extent = extent_of(trace) if extent is None else extent
    tick_us = tick_times(extent.first_publish_us, extent.last_us, tick, idle_timeout)
    return ticks_at(trace, tick_us, tick_us, complete_from or from_us(extent.first_publish_us))


def ticks_at(trace: Trace, tick_us: Ints, observed_us: Ints, complete_from: datetime) -> list[Tick]:
    """Return ticks at the times `tick_us`, which ascend. The readings of a tick are those at the latest time in
    `observed_us` that is not after the tick."""
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
    """Return, for each moment, the index of the first tick at or after the moment; for NEVER, the number of ticks."""
    return np.searchsorted(tick_us, moments, side="left").astype(np.int64)


def late_in(batch: Batch, tick_us: Ints, watermark_us: Ints) -> Ints:
    """Return the number of late messages in a batch, per tick. A message counts at the first tick at or after its
    landing, and not at all if it landed after the last tick.

    A message is late if its event time is below the watermark of the last tick strictly before it landed. `tick_us` are
    the times of the ticks, which ascend; `watermark_us` are the watermarks of the ticks, or NO_WATERMARK.
    """
    landing = first_tick_at(tick_us, batch.landed_us)
    before_landing = np.concatenate([[NO_WATERMARK], watermark_us])[landing]
    late = (batch.event_us < before_landing) & (landing < len(tick_us))
    return np.bincount(landing[late], minlength=len(tick_us)).astype(np.int64)


def landed_in(batch: Batch, tick_us: Ints) -> int:
    """Return the number of messages with an event time that had landed by the last tick. Only these can be late."""
    return int(np.count_nonzero((batch.landed_us <= tick_us[-1]) & (batch.event_us != NO_EVENT_TIME)))


def _readings(least_publish_us: Ints, tick_us: Ints) -> list[Reading]:
    """Return a subscription's reading at each tick. `least_publish_us` has, for each tick, the least publish time of
    the messages that were acknowledged since the previous tick.

    To find the oldest outstanding message at a tick, take the message with the least publish time among those that were
    acknowledged after the tick. If it was published by the tick, it was outstanding; else no message was.
    """
    later_us = np.minimum.accumulate(least_publish_us[::-1])[::-1][1:]
    return [
        Reading(observed_at=from_us(tick), oldest_unacked=from_us(min(tick, oldest)), names_a_message=oldest <= tick)
        for tick, oldest in zip(tick_us.tolist(), later_us.tolist(), strict=True)
    ]


def watermarks_us(watermarks: Sequence[datetime | None]) -> Ints:
    """Return watermarks in the form that `late_in` takes: in microseconds, or NO_WATERMARK for None."""
    return np.array([NO_WATERMARK if moment is None else to_us(moment) for moment in watermarks], dtype=np.int64)
