"""Each band has the outcome of a replay with it, and the band that is enough is found."""

from dataclasses import replace
from datetime import timedelta
from functools import cache

import numpy as np
import pytest

from tests.tuning.tuning_traces import SECOND_US, MemoryTrace, Source
from tests.watermark.builders import START_US, seconds
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.replay.replay import decide_again, replayed
from tidemark.pipeline.replay.trace import NO_WATERMARK, extent_of, ticks_of
from tidemark.pipeline.tuning.sweep import BandOutcome, Tuning, Variant, Workload, outcomes_of, tune, watermarks_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import WatermarkState

TICK = timedelta(seconds=10)
IDLE = timedelta(minutes=2)
BAND, FRONTIER = Variant("band"), Variant("frontier")
LATE = Source(seconds=900, rate=20, late=0.005, late_by=60)
FAST = Source(seconds=600, rate=20, fast=1, fast_by=30, left=0)


def policy_of(variant: Variant, band: timedelta) -> Policy:
    return Policy(rule=variant.rule, band=band, quantile=variant.quantile)


def workload_of(trace: MemoryTrace) -> Workload:
    extent = extent_of(trace)
    ticks = ticks_of(trace, TICK, IDLE, extent=extent)
    return Workload(ticks, trace, extent.first_publish_us, int(trace.publish_us.max()))


CANDIDATES = [
    (Variant(rule, quantile), seconds(band))
    for band in (0, 10, 300)
    for rule, quantile in (("band", 0.0), ("frontier", 0.0), ("band", 0.05), ("frontier", 0.05))
]
POLICIES = [policy_of(*candidate) for candidate in CANDIDATES]


def outcomes_as_replayed(workload: Workload, trace: MemoryTrace) -> list[BandOutcome]:
    """The outcomes, of which each candidate's late and landed messages and its lag are those of its own replay."""
    outcomes = outcomes_of(workload, CANDIDATES, policy_of)
    for outcome in outcomes:
        decisions = [d.decision for d in decide_again(workload.ticks, policy_of(outcome.variant, outcome.band))]
        lags = sorted(
            decision.lag.total_seconds()
            for decision in decisions
            if decision.lag is not None and decision.at <= from_us(workload.until_us)
        )
        expected = replayed(decisions, trace)
        assert (outcome.late, outcome.landed) == (expected.late, expected.landed)
        assert outcome.lag_p50 == lags[-(-len(lags) // 2) - 1]
        assert outcome.lag_p99 == lags[-(-len(lags) * 99 // 100) - 1]
    return outcomes


@pytest.mark.parametrize(
    "source",
    [FAST, Source(late=0.3, late_by=20, slow=5), Source(seconds=900, rate=1, streams=3)],
    ids=["fast", "slow", "sparse"],
)
def test_each_candidate_has_the_share_and_the_lag_of_its_replay(source: Source) -> None:
    trace = source.trace()
    assert outcomes_as_replayed(workload_of(trace), trace)


def test_candidates_do_so_through_a_silence_a_backlog_and_messages_that_never_land() -> None:
    trace = LATE.trace()
    there = (trace.publish_us < START_US + 300 * SECOND_US) | (trace.publish_us > START_US + 600 * SECOND_US)
    outage = (trace.publish_us > START_US + 650 * SECOND_US) & (trace.publish_us < START_US + 750 * SECOND_US)
    landed = np.where(outage, START_US + 800 * SECOND_US, trace.landed_us)
    landed[5] = np.iinfo(np.int64).max
    stumbling = MemoryTrace(
        *(column[there] for column in (trace.publish_us, trace.event_us, trace.tracked_us, landed, trace.stream)),
        trace.streams,
    )
    workload = workload_of(stumbling)
    assert outcomes_as_replayed(workload, stumbling)
    back = [replace(tick, at=tick.at + seconds(95 * (number % 3))) for number, tick in enumerate(workload.ticks)]
    assert outcomes_as_replayed(replace(workload, ticks=back), stumbling)  # the clocks of three trackers disagree


def test_begun_in_the_middle_of_a_log_no_candidate_takes_over_the_watermark_of_another_policy() -> None:
    workload = workload_of(LATE.trace())
    state = WatermarkState()
    for tick in workload.ticks[:40]:
        for entry in tick.entries:
            state = state.after(state.number + 1, entry)
        state = state.after(state.number + 1, state.decide(tick.base, tick.tracking, Policy(band=seconds(3)), tick.at))
    begun = replace(workload, ticks=workload.ticks[40:], state=state)
    for policy in POLICIES:
        assert watermarks_of(begun, policy)[-20:].tolist() == watermarks_of(workload, policy)[-20:].tolist()
    assert watermarks_of(begun, policy_of(BAND, seconds(300)))[0] == NO_WATERMARK
    unread = replace(begun, ticks=[replace(tick, base=None) for tick in begun.ticks[:9]])  # the budget puts it off
    assert NO_WATERMARK not in watermarks_of(unread, POLICIES[0])


@cache
def tuned(source: Source, *variants: Variant) -> Tuning:
    return tune(workload_of(source.trace()), variants or (BAND, FRONTIER), policy_of, targets=(0.01, 0.001, 0.0))


def test_the_band_that_is_enough_is_found_to_the_second_and_none_above_it_is_worse() -> None:
    tuning = tuned(LATE)
    for recommendation in tuning.recommendations:
        enough = recommendation.outcome
        outcomes = tuning.of(recommendation.variant)
        assert all(each.late_share <= recommendation.target for each in outcomes if each.band >= enough.band)
        below = [each for each in outcomes if each.band < enough.band]
        if below:
            assert enough.band - below[-1].band <= seconds(1)
            assert below[-1].late_share > recommendation.target


def test_a_band_that_happens_to_do_well_below_one_that_does_not_is_not_enough() -> None:
    def outcome(band: int, late: int) -> BandOutcome:
        return BandOutcome(BAND, seconds(band), 100, late, 1.0, 1.0)

    from tidemark.pipeline.tuning.sweep import _enough

    outcomes = [outcome(band, late) for band, late in ((1, 9), (2, 0), (3, 1), (4, 0), (5, 0))]
    assert _enough(outcomes, 0.0).band == seconds(4)


def test_no_band_is_enough_where_none_gave_a_watermark_although_nothing_is_late() -> None:
    held = [BandOutcome(BAND, seconds(band), 100, 0, None, None) for band in (0, 10)]
    found = Tuning([BAND], held, [0.0], 75).recommended(BAND, 0.0)
    assert (found.outcome, str(found)) == (None, "no watermark")
