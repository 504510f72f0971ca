"""One source with a wrong clock, among many that are right: what it does to the others, decided again over traces."""

from dataclasses import replace
from datetime import timedelta
from typing import Literal

import numpy as np
import pytest

from tests.tuning.tuning_traces import MemoryTrace, Source
from tidemark.pipeline.replay.outcome import Replayed, replayed
from tidemark.pipeline.replay.replay import decide_again
from tidemark.pipeline.replay.trace import ticks_of
from tidemark.pipeline.watermark.policy import Policy

RuleName = Literal["band", "frontier"]
both_rules = pytest.mark.parametrize("rule", ["band", "frontier"])
FAST = Source(seconds=1200, jitter=8, fast=1, fast_by=240, left=0)


def decided(trace: MemoryTrace, policy: Policy) -> Replayed:
    ticks = ticks_of(trace, timedelta(seconds=10), policy.idle_timeout)
    return replayed([made.decision for made in decide_again(ticks, policy)], trace)


def one_in(trace: MemoryTrace, share: int) -> MemoryTrace:
    """Every so manieth message."""
    times = (trace.publish_us, trace.event_us, trace.tracked_us, trace.landed_us)
    return MemoryTrace(*(column[::share] for column in times), trace.stream[::share], trace.streams)


@both_rules
@pytest.mark.parametrize("apart", [1, 30 * FAST.rate], ids=["20 a second", "one in 30 s"])
def test_a_clock_that_runs_fast_makes_nobody_late(rule: RuleName, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FAST if apart == 1 else replace(FAST, seconds=3600, streams=3, fast=1)
    trace, policy = one_in(source.trace(), apart), Policy(rule=rule)
    assert decided(trace, policy).late == 0
    monkeypatch.setattr("tidemark.pipeline.watermark.histogram.clamped", lambda event_us, _publish_us: event_us)
    share = decided(trace, policy).late_share
    assert share == 0 if (rule, apart) == ("band", 1) else share > 0.4  # without the clamp


def test_a_fast_clock_moves_the_watermark_no_further_than_the_others_do() -> None:
    trace = FAST.trace()
    is_right = trace.stream < trace.streams - FAST.fast
    lags = [
        decided(one, Policy(rule="frontier")).lag(0.5)
        for one in (trace, replace(trace, event_us=np.where(is_right, trace.event_us, trace.publish_us)))
    ]
    assert lags[0] == lags[1]
