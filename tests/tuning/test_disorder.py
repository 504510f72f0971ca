"""Disorder by message and by stream, against the definition on a plain list; and who is to blame for it."""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning.tuning_traces import SECOND_US, MemoryTrace, Source
from tests.watermark.builders import START_US, Times, bounded, ints
from tidemark.pipeline.replay.trace import NO_EVENT_TIME
from tidemark.pipeline.tuning.disorder import Disorder, disorder_of

BAND = timedelta(seconds=10)
TENTH_US = 100_000

tenths = st.integers(0, 120).map(lambda tenth: START_US + tenth * TENTH_US)


def trace_of(messages: Sequence[Times]) -> MemoryTrace:
    publish, event = ints(publish for publish, _ in messages), ints(event for _, event in messages)
    return MemoryTrace(publish, event, publish, publish, ints([0] * len(messages)), 1)


def measured(trace: MemoryTrace, band: timedelta = BAND, worst: int = 10) -> Disorder:
    return disorder_of(trace, band, worst)


@given(st.lists(st.tuples(tenths, tenths), min_size=1, max_size=40))
@bounded
def test_each_message_has_the_disorder_that_the_definition_gives_it(messages: list[Times]) -> None:
    expected = sorted(
        max([0, *(publish - other for other, newer in messages if newer > event)]) / SECOND_US
        for publish, event in messages
    )
    disorder = measured(trace_of(messages)).disorder
    found = [seconds for seconds, count in zip(disorder.seconds, disorder.counts, strict=True) for _ in range(count)]
    assert found == pytest.approx(expected)


def test_slow_streams_are_named_and_punctual_ones_are_not() -> None:
    disorder = measured(Source(slow=2, slow_by=30).trace())
    assert {stream.stream for stream in disorder.sides["slow"].worst if stream.slow_beyond_band} == {
        "stream-0000",
        "stream-0001",
    }
    worst = disorder.sides["slow"].worst[0]
    assert worst.slow_beyond_band == worst.beyond_band == worst.messages
    assert worst.offset_seconds == pytest.approx(30, abs=1)
    assert 30 <= worst.slow_max_seconds <= 35
    assert worst.fast_max_seconds == 0
    assert disorder.sides["fast"].beyond_band == 0


def test_a_clock_that_runs_fast_is_blamed_and_not_those_whom_it_puts_out_of_order() -> None:
    disorder = measured(Source(fast=1, fast_by=30).trace())
    assert disorder.beyond_band > 0.9 * disorder.messages
    assert disorder.sides["slow"].beyond_band == 0
    assert [stream.stream for stream in disorder.sides["fast"].worst if stream.fast_beyond_band] == ["stream-0049"]
    culprit = disorder.sides["fast"].worst[0]
    assert 0.95 * culprit.messages < culprit.fast_beyond_band == disorder.sides["fast"].beyond_band
    assert culprit.offset_seconds == pytest.approx(-30, abs=1)
    assert culprit.disorder_max_seconds < 10
    victim = next(stream for stream in disorder.sides["slow"].worst if stream.stream != "stream-0049")
    assert victim.beyond_band > 0.9 * victim.messages
    assert victim.slow_max_seconds < 10


def test_rejected_messages_and_unknown_streams_are_left_out() -> None:
    trace = Source(slow=1).trace()
    rejected = trace.stream == 0
    event = np.where(rejected, NO_EVENT_TIME, trace.event_us)
    trace = MemoryTrace(
        trace.publish_us, event, trace.tracked_us, trace.landed_us, np.where(trace.stream == 1, -1, trace.stream), 50
    )
    disorder = measured(trace, worst=50)
    assert disorder.rejected == int(rejected.sum())
    assert disorder.messages == len(event) - disorder.rejected
    assert disorder.sides["slow"].beyond_band == 0
    assert disorder.streams == 48
    assert {"stream-0000", "stream-0001"}.isdisjoint(stream.stream for stream in disorder.sides["slow"].worst)
