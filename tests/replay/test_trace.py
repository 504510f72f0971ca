"""A trace becomes ticks: against a reckoning of each tick by itself, over all messages."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.traces import Held, late_per_tick
from tests.watermark.builders import START_US, at, bounded, ints, seconds
from tests.watermark.exact_rule import exact_late, exact_readings
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.replay.trace import (
    NEVER,
    NO_EVENT_TIME,
    Batch,
    Extent,
    Tally,
    Tick,
    extent_of,
    late_in,
    tick_times,
    ticks_at,
    ticks_of,
    watermarks_us,
)
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import Beginning, Snapshot

SECOND_US = 1_000_000

moments = st.one_of(
    st.integers(0, 60).map(lambda second: START_US + second * SECOND_US),  # on ticks, and ties
    st.integers(0, 60 * SECOND_US).map(lambda offset: START_US + offset),
)
messages = st.tuples(
    moments,
    st.one_of(moments, st.just(NO_EVENT_TIME)),
    st.one_of(moments, st.just(NEVER)),
    st.one_of(moments, st.just(NEVER)),
)


def batch_of(rows: list[tuple[int, int, int, int]]) -> Batch:
    return Batch(*(ints(column) for column in zip(*rows, strict=True)))


traces = st.builds(
    lambda rows, part: Held(batch_of(rows), part), st.lists(messages, min_size=1, max_size=25), st.integers(1, 10)
)
"""A few messages in any order, anything null that may be, acknowledged at any time, in batches of a few."""


def one(publish: float, event: float | None, tracked: float | None, landed: float | None) -> tuple[int, int, int, int]:
    """A message, in seconds from the start."""
    return (
        to_us(at(publish)),
        NO_EVENT_TIME if event is None else to_us(at(event)),
        NEVER if tracked is None else to_us(at(tracked)),
        NEVER if landed is None else to_us(at(landed)),
    )


def ticks_in(trace: Held, tick: float = 10, idle: float = 20) -> list[Tick]:
    return ticks_of(trace, seconds(tick), seconds(idle))


@bounded
@given(traces, st.sampled_from([1.0, 2.5, 7.0, 10.0]))
def test_each_tick_has_the_readings_of_its_moment(trace: Held, tick: float) -> None:
    for each in ticks_in(trace, tick):
        assert each.base is not None
        assert each.tracking is not None
        base, tracking = exact_readings(trace.messages, to_us(each.at))
        assert (to_us(each.base.oldest_unacked), to_us(each.tracking.oldest_unacked)) == (base, tracking)
        assert each.base.observed_at == each.tracking.observed_at == each.at
        for reading, acknowledged in (
            (each.base, trace.messages.landed_us),
            (each.tracking, trace.messages.tracked_us),
        ):
            outstanding = (trace.messages.publish_us <= to_us(each.at)) & (acknowledged > to_us(each.at))
            assert reading.names_a_message == outstanding.any()


@bounded
@given(traces, st.lists(st.tuples(st.floats(0.1, 20), st.floats(-3, 20)), min_size=1, max_size=20))
def test_a_reading_is_that_of_the_newest_moment_at_which_it_was_observed(
    trace: Held, steps: list[tuple[float, float]]
) -> None:
    tick_us = np.cumsum([int(step * 1e6) for step, _ in steps]) + START_US
    observed_us = tick_us - ints(int(age * 1e6) for _, age in steps)
    for number, each in enumerate(ticks_at(trace, tick_us, observed_us, at(0))):
        newest = int(min(observed_us[: number + 1].max(), tick_us[number]))
        assert each.base is not None
        assert each.tracking is not None
        assert to_us(each.at) == tick_us[number]
        assert to_us(each.base.observed_at) == to_us(each.tracking.observed_at) == newest
        expected = exact_readings(trace.messages, newest)
        assert (to_us(each.base.oldest_unacked), to_us(each.tracking.oldest_unacked)) == expected


@bounded
@given(traces, st.sampled_from([1.0, 2.5, 7.0, 10.0]))
def test_the_histogram_holds_at_each_tick_what_is_tracked_by_then(trace: Held, tick: float) -> None:
    folded = Histogram.empty()
    for each in ticks_in(trace, tick):
        for entry in each.entries:
            if isinstance(entry, Snapshot):
                folded += entry.histogram
        assert folded == histogram_at(trace.messages, to_us(each.at))


def histogram_at(whole: Batch, at_us: int) -> Histogram:
    """What is tracked by a moment, in one go."""
    tracked, valid = whole.tracked_us <= at_us, whole.event_us != NO_EVENT_TIME
    return Histogram.of(
        whole.publish_us[tracked & valid], whole.event_us[tracked & valid], whole.publish_us[tracked & ~valid]
    )


@bounded
@given(traces, st.lists(st.one_of(st.none(), moments), min_size=1, max_size=12))
def test_a_message_is_late_if_it_lands_after_a_watermark_above_its_event_time(
    trace: Held, watermarks: list[int | None]
) -> None:
    tick_us = START_US + 6 * SECOND_US * np.arange(len(watermarks))
    known = watermarks_us([None if us is None else from_us(us) for us in watermarks])
    cumulated = np.cumsum(late_per_tick(trace, tick_us, known))
    assert cumulated.tolist() == exact_late(trace.messages, tick_us, watermarks)


def test_before_the_first_tick_and_without_an_event_time_or_a_landing_nothing_is_late() -> None:
    tick_us, watermarks = ints([to_us(at(10)), to_us(at(20))]), watermarks_us([at(100), at(100)])
    never = batch_of([one(1, 5, 1, 10), one(1, None, 1, 15), one(1, 5, 1, None), one(1, 5, 1, 20.5)])
    assert late_in(never, tick_us, watermarks).tolist() == [0, 0]


def test_ticks_begin_one_interval_after_the_first_second_and_end_after_the_idle_timeout() -> None:
    first, last = to_us(at(3.7)), to_us(at(17))
    times = tick_times(first, last, seconds(10), seconds(20))
    assert [from_us(us) for us in times.tolist()] == [at(13), at(23), at(33), at(43), at(53)]
    up_to_the_end = tick_times(first, to_us(at(13)), seconds(10), seconds(20))
    assert from_us(up_to_the_end[-1]) == at(53)  # 13 + 20 + 2 * 10, included


def test_the_extent_counts_rejected_and_unacknowledged_messages_apart() -> None:
    rows = [one(1, None, 2, 3), one(2, 1, None, 3), one(3, 1, 4, None), one(9, 1, 8.5, 10), one(9, 1, 10, 8)]
    assert extent_of(Held(batch_of(rows), part=2)) == Extent(5, 1, 1, 1, 2, to_us(at(1)), to_us(at(10)))


def test_tracking_is_complete_from_the_first_publish_time_unless_an_option_says_otherwise() -> None:
    trace = Held(batch_of([one(3.7, 3, 4, 5), one(8, 7, 9, 10)]))
    (beginning,) = [entry for tick in ticks_in(trace) for entry in tick.entries if isinstance(entry, Beginning)]
    assert beginning == Beginning(at(3.7))
    said = ticks_of(trace, seconds(10), seconds(20), complete_from=at(60))
    assert said[0].entries[0] == Beginning(at(60))


def test_a_trace_without_messages_is_refused() -> None:
    with pytest.raises(TraceUnusable, match="no messages"):
        ticks_in(Held(replace(batch_of([one(1, 1, 1, 1)]), **dict.fromkeys(COLUMNS, ints([])))))


def test_a_time_that_is_far_from_the_others_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(TraceUnusable, match="far from the others"):
        ticks_of(Held(batch_of([(0, 0, 1, 1), one(1, 1, 1, 1)])), timedelta(seconds=1), seconds(20))


COLUMNS = ("publish_us", "event_us", "tracked_us", "landed_us")


pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(-20, 20)), max_size=60)


def counted(tally: Tally) -> list[tuple[int, int, int]]:
    return [
        (group, value, count)
        for group, values, counts in tally.groups()
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]


@given(st.lists(pairs, max_size=4))
@bounded
def test_pairs_are_counted_whatever_their_batches(batches: list[list[tuple[int, int]]]) -> None:
    tally = Tally()
    for batch in batches:
        tally.add(ints(group for group, _ in batch), ints(value for _, value in batch))
    expected = Counter(pair for batch in batches for pair in batch)
    assert counted(tally) == [(*pair, count) for pair, count in sorted(expected.items())]
    values, counts = tally.whole()
    whole = Counter(value for batch in batches for _, value in batch)
    assert list(zip(values.tolist(), counts.tolist(), strict=True)) == sorted(whole.items())
    for group in range(-4, 5):
        values, counts = tally.of(group)
        own = Counter(value for batch in batches for other, value in batch if other == group)
        assert list(zip(values.tolist(), counts.tolist(), strict=True)) == sorted(own.items())


def test_many_batches_stay_as_few_cells_as_there_are_different_pairs() -> None:
    tally = Tally()
    random = np.random.default_rng(1)
    for _ in range(40):
        tally.add(random.integers(0, 100, 10_000), random.integers(0, 100, 10_000))
    cells = counted(tally)
    assert len(cells) <= 10_000
    assert sum(count for _, _, count in cells) == 400_000
