"""A trace: what was published and when both subscriptions had it, and the ticks that a run would have made of it.

The messages come in batches and are seen a few times over; what is kept of them is a histogram for each tick and a
few numbers for each tick, so that memory follows the time that the trace spans, never the rate of its messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.clock import duration_us, from_us, to_us
from pipeline.durations import format_duration
from pipeline.errors import TraceUnusable
from pipeline.replay.replay import Tick
from pipeline.watermark.histogram import BUCKET_US, KEYS, NO_EVENT, NO_MINIMUM, Histogram, Ints, grouped, slots_of
from pipeline.watermark.readings import Reading
from pipeline.watermark.state import Beginning, Entry, Snapshot

NO_EVENT_TIME = NO_MINIMUM
"""The event time of a rejected message."""

NEVER = np.iinfo(np.int64).max
"""When that was acknowledged which never was."""

NO_WATERMARK = np.iinfo(np.int64).min
"""Before the first watermark: no event time is below it."""

MOST_TICKS = 2_000_000
"""More come of a publish time that is far from the others, or of a tick that is too short for the trace."""

FEWEST_CELLS_TO_MERGE = 1 << 17


@dataclass(frozen=True, slots=True)
class Streams:
    """The messages' streams: `names[codes[i]]` is that of message i; the code -1 means that it has none."""

    codes: npt.NDArray[np.int32]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages of a trace, in any order: four int64 arrays of one length, in microseconds since the epoch.

    `event_us` is `NO_EVENT_TIME` for a rejected message. `tracked_us` and `landed_us` are when the acknowledgement on
    tracking and on base took effect, `NEVER` where it did not. `streams` is there where it was asked for.
    """

    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    streams: Streams | None = None

    def __len__(self) -> int:
        return len(self.publish_us)


class Trace(Protocol):
    """Messages that can be read over and over."""

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """One pass over all messages. `streams` says whether their streams are wanted, which costs time."""
        ...


@dataclass(frozen=True, slots=True)
class Extent:
    """What one pass over a trace tells. `last_us` is the last thing that happens: publication or acknowledgement.

    `acknowledged_early` counts the messages that were acknowledged, on either subscription, before their publish time,
    as clocks that disagree have it: such a message is in the histogram, or landed, from its acknowledgement on.
    """

    messages: int
    rejected: int
    never_tracked: int
    never_landed: int
    acknowledged_early: int
    first_publish_us: int
    last_us: int


def extent_of(trace: Trace) -> Extent:
    """Read a trace once. Raises TraceUnusable for one without a message."""
    messages = rejected = never_tracked = never_landed = early = 0
    first, last = NEVER, NO_WATERMARK
    for batch in trace.batches():
        if not len(batch):
            continue
        messages += len(batch)
        rejected += int(np.count_nonzero(batch.event_us == NO_EVENT_TIME))
        never_tracked += int(np.count_nonzero(batch.tracked_us == NEVER))
        never_landed += int(np.count_nonzero(batch.landed_us == NEVER))
        early += int(np.count_nonzero(np.minimum(batch.tracked_us, batch.landed_us) < batch.publish_us))
        first = min(first, int(batch.publish_us.min()))
        for moments in (batch.publish_us, batch.tracked_us, batch.landed_us):
            last = max(last, int(moments.max(initial=NO_WATERMARK, where=moments != NEVER)))
    if not messages:
        raise TraceUnusable("the trace has no messages; it needs at least one, with its publish_time")
    return Extent(messages, rejected, never_tracked, never_landed, early, first, last)


def tick_times(first_publish_us: int, last_us: int, tick: timedelta, idle_timeout: timedelta) -> Ints:
    """When a run would have decided: one interval after the first publish time, rounded down to the second, and every
    interval from there until one idle timeout and two intervals after the last thing that happens, included."""
    interval = duration_us(tick)
    begin = first_publish_us // BUCKET_US * BUCKET_US + interval
    end = last_us + duration_us(idle_timeout) + 2 * interval
    count = (end - begin) // interval + 1
    if count > MOST_TICKS:
        raise TraceUnusable(
            f"from {from_us(first_publish_us).isoformat()} to {from_us(last_us).isoformat()} the trace spans {count:,} "
            f"ticks of {format_duration(tick)}, more than {MOST_TICKS:,}; take a longer tick (--tick of a replay, "
            "watermark.tick of the settings), or look for a time that is far from the others"
        )
    return begin + interval * np.arange(count, dtype=np.int64)


def ticks_of(
    trace: Trace,
    tick: timedelta,
    idle_timeout: timedelta,
    complete_from: datetime | None = None,
    extent: Extent | None = None,
) -> list[Tick]:
    """The ticks that a run would have made of a trace: what tracking acknowledged since the last one, as a histogram,
    and the readings of that moment. `extent` spares a pass where it is known.

    At tick `t` a subscription's reading is the least publish time of the messages with `publish time <= t` that it
    had not acknowledged by `t`, else `t`. `complete_from` is the first publish time unless it is given.
    """
    extent = extent_of(trace) if extent is None else extent
    tick_us = tick_times(extent.first_publish_us, extent.last_us, tick, idle_timeout)
    base, tracking, deltas = _Backlog(len(tick_us)), _Backlog(len(tick_us)), _Deltas(len(tick_us))
    for batch in trace.batches():
        tracked = first_tick_at(tick_us, batch.tracked_us)
        base.add(batch.publish_us, first_tick_at(tick_us, batch.landed_us))
        tracking.add(batch.publish_us, tracked)
        deltas.add(batch, tracked)
    beginning = Beginning(from_us(extent.first_publish_us) if complete_from is None else complete_from)
    histograms = deltas.by_tick()
    return [
        Tick(
            at=at,
            entries=_entries(beginning if number == 0 else None, histograms.get(number)),
            base=_reading(at, base_us),
            tracking=_reading(at, tracking_us),
        )
        for number, (at, base_us, tracking_us) in enumerate(
            zip(map(from_us, tick_us.tolist()), base.oldest(tick_us), tracking.oldest(tick_us), strict=True)
        )
    ]


def first_tick_at(tick_us: Ints, moments: Ints) -> Ints:
    """For each moment, the number of the first tick that is not before it; for `NEVER`, the number of ticks."""
    return np.searchsorted(tick_us, moments, side="left").astype(np.int64)


def late_in(batch: Batch, tick_us: Ints, watermark_us: Ints) -> Ints:
    """How many messages of a batch are late, by the first tick that is not before their landing.

    A message is late if its event time is below the watermark of the last tick strictly before it landed. `tick_us`
    rises; `watermark_us` is each tick's watermark, `NO_WATERMARK` for none. What lands after the last tick is in none.
    """
    landing = first_tick_at(tick_us, batch.landed_us)
    before_landing = np.concatenate([[NO_WATERMARK], watermark_us])[landing]
    late = (batch.event_us < before_landing) & (landing < len(tick_us))
    return np.bincount(landing[late], minlength=len(tick_us)).astype(np.int64)


def late_per_tick(trace: Trace, tick_us: Ints, watermark_us: Ints) -> Ints:
    """`late_in` of a whole trace."""
    late = np.zeros(len(tick_us), dtype=np.int64)
    for batch in trace.batches():
        late += late_in(batch, tick_us, watermark_us)
    return late


def _entries(beginning: Beginning | None, histogram: Histogram | None) -> tuple[Entry, ...]:
    entries: list[Entry] = [] if beginning is None else [beginning]
    return tuple(entries if histogram is None else [*entries, Snapshot(histogram)])


def _reading(at: datetime, oldest_us: int | None) -> Reading:
    oldest = at if oldest_us is None else from_us(oldest_us)
    return Reading(observed_at=at, oldest_unacked=oldest, names_a_message=oldest_us is not None)


class _Backlog:
    """What is outstanding at each tick: one number a tick, however many messages there are.

    At tick `t`, consider everything that is acknowledged after `t`. If the least publish time among it is not above
    `t`, that message is outstanding and the oldest; if it is above, everything else among it is too, and nothing is
    outstanding. So the least publish time by the tick of the acknowledgement, taken from the end, is enough.
    """

    def __init__(self, ticks: int) -> None:
        self._least_publish_us = np.full(ticks + 1, NEVER, dtype=np.int64)

    def add(self, publish_us: Ints, acknowledged_by: Ints) -> None:
        """Messages, and the number of the tick by which each was acknowledged."""
        np.minimum.at(self._least_publish_us, acknowledged_by, publish_us)

    def oldest(self, tick_us: Ints) -> list[int | None]:
        """Of each tick: the publish time of the oldest outstanding message, None where there is none."""
        later = np.minimum.accumulate(self._least_publish_us[::-1])[::-1][1:]
        return [
            oldest if oldest <= tick else None for oldest, tick in zip(later.tolist(), tick_us.tolist(), strict=True)
        ]


class _Deltas:
    """The cells that each tick adds to the histogram: (tick, publish bucket, event bucket) -> its values.

    Batches are merged whenever as many cells have come in again as there were, so that it costs a constant factor
    and what is held follows the number of different cells.
    """

    def __init__(self, ticks: int) -> None:
        self._ticks = ticks
        self._parts: list[list[Ints]] = []
        self._unmerged = self._merged = 0
        self._newest_publish_us = np.full(ticks, NO_EVENT, dtype=np.int64)

    def add(self, batch: Batch, tracked_by: Ints) -> None:
        """Messages, and the number of the tick by which each was tracked."""
        seen = tracked_by < self._ticks
        tracked, publish, event = tracked_by[seen], batch.publish_us[seen], batch.event_us[seen]
        valid = event != NO_EVENT_TIME
        np.maximum.at(self._newest_publish_us, tracked[valid], publish[valid])
        event_bucket = np.where(valid, event // BUCKET_US, NO_EVENT)
        keys = [tracked, publish // BUCKET_US, event_bucket]
        self._parts.append(grouped(keys, [np.ones_like(publish), event, publish, publish, slots_of(publish)]))
        self._unmerged += len(self._parts[-1][0])
        if self._unmerged > max(self._merged, FEWEST_CELLS_TO_MERGE):
            self._merge()

    def by_tick(self) -> dict[int, Histogram]:
        """What each tick adds; a tick that adds nothing is not there."""
        if not self._parts:
            return {}
        self._merge()
        tracked, *cells = self._parts[0]
        numbers, starts = np.unique(tracked, return_index=True)
        bounds = pairwise([*starts.tolist(), len(tracked)])
        return {
            number: self._histogram(number, [column[low:high] for column in cells])
            for number, (low, high) in zip(numbers.tolist(), bounds, strict=True)
        }

    def _histogram(self, number: int, cells: Sequence[Ints]) -> Histogram:
        _, _, _, least_event, *_ = cells
        newest, oldest = int(self._newest_publish_us[number]), int(least_event.min())
        return Histogram.of_columns(
            cells,
            newest_publish_us=None if newest == NO_EVENT else newest,
            oldest_event_us=None if oldest == NO_EVENT_TIME else oldest,
        )

    def _merge(self) -> None:
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        self._parts = [grouped(columns[: 1 + KEYS], columns[1 + KEYS :])]  # the tick's number is a key as well
        self._unmerged, self._merged = 0, len(self._parts[0][0])


def watermarks_us(watermarks: Sequence[datetime | None]) -> Ints:
    """Watermarks as `late_in` takes them."""
    return np.array([NO_WATERMARK if moment is None else to_us(moment) for moment in watermarks], dtype=np.int64)
