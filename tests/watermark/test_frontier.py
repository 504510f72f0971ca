"""The rule `frontier`: the least event time since base's oldest, and the greatest before tracking less the band."""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import (
    EVERY_SECOND,
    LONG_AGO,
    START,
    START_US,
    Times,
    at,
    bounded,
    decide,
    effective,
    flat,
    histogram_of,
    published,
    reading,
    seconds,
    situation_of,
)
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram, bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import frontier_of
from tidemark.pipeline.watermark.state import Beginning, Compacted, Snapshot, WatermarkState

FRONTIER = Policy(rule="frontier", idle="hold")


def decided(histogram: Histogram, base: float, tracking: float = 100, policy: Policy = FRONTIER) -> Decision:
    """One decision at 100, with oldest unacknowledged publish times in seconds from the start."""
    return decide(
        histogram, base=effective(base, observed=100), tracking=effective(tracking, observed=100), policy=policy
    )


def test_a_late_stream_that_has_landed_does_not_hold_the_frontier_as_it_holds_the_band() -> None:
    one_is_late = EVERY_SECOND + published([(second + 0.5, second - 60) for second in range(0, 100, 10)])
    assert decided(one_is_late, base=100).watermark == at(88)
    assert decided(one_is_late, base=100, policy=replace(FRONTIER, rule="band")).watermark == at(30)


def test_pruned_messages_keep_their_part_of_the_frontier_through_a_restart() -> None:
    fast_once = published([(3, 60), *((second, second - 1) for second in range(4, 100))])
    state = _tick(WatermarkState().after(0, Beginning(LONG_AGO)), fast_once, now=100)
    assert state.watermark == at(88)
    assert state.pruned_frontier is not None
    assert state.pruned_frontier.min_event_time == at(87)
    nothing_high = published([(second, 10) for second in range(101, 130)])
    through = _tick(state, nothing_high, now=130)
    restarted = _tick(WatermarkState().after(0, Compacted(state)), nothing_high, now=130)
    assert through.decision == restarted.decision
    assert through.decision is not None
    assert flat(through.decision).frontier == at(98)  # published at 99: some of it was pruned, all of it is known


def test_a_wider_band_than_that_which_pruned_waits_until_tracking_has_come_there_again() -> None:
    state = _tick(WatermarkState().after(0, Beginning(LONG_AGO)), EVERY_SECOND, now=100)
    wider = replace(FRONTIER, band=seconds(40))
    held = state.decide(reading(101), reading(101), wider, at(101))
    assert held.decision.reason is Reason.HELD_NO_DATA
    later = state.decide(reading(131), reading(131), wider, at(131))
    assert flat(later.decision).frontier == at(89)


def _tick(state: WatermarkState, histogram: Histogram, *, now: float) -> WatermarkState:
    state = state.after(state.number + 1, Snapshot(histogram))
    return state.after(state.number + 1, state.decide(reading(now), reading(now), FRONTIER, at(now)))


# ------------------------------------------------------------------------------------- against plain lists

TENTH = 100_000
tenths = st.integers(-50, 400).map(lambda tenth: START_US + tenth * TENTH)
timelines = st.lists(st.tuples(tenths, tenths).map(lambda times: (times[0], min(times))), max_size=40)
moments = st.integers(0, 400).map(lambda tenth: from_us(START_US + tenth * TENTH))
bands = st.sampled_from([0.0, 0.5, 1.0, 2.5, 10.0]).map(seconds)


@bounded
@given(timelines, moments, moments, bands)
def test_the_frontier_is_below_the_rule_on_exact_times_by_less_than_a_bucket(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    decision = _decision(histogram_of(messages), base, tracking, replace(FRONTIER, band=band))
    passed = [event for publish, event in messages if publish < to_us(tracking - band)]
    since = [event for publish, event in messages if publish >= to_us(base)]
    if not passed:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    assert decision.watermark is not None
    exact = min([max(passed), *since])
    assert exact - BUCKET_US < to_us(decision.watermark) <= exact


@bounded
@given(timelines, moments, moments, bands)
def test_the_frontier_is_never_below_the_band_where_nothing_is_known_beyond_tracking(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    seen = histogram_of([times for times in messages if times[0] <= to_us(tracking)])
    by_band = _decision(seen, base, tracking, replace(FRONTIER, rule="band", band=band))
    by_frontier = _decision(seen, base, tracking, replace(FRONTIER, band=band))
    assert (by_band.watermark is None) == (by_frontier.watermark is None)
    if by_band.watermark is not None and by_frontier.watermark is not None:
        assert by_frontier.watermark >= by_band.watermark


@bounded
@given(timelines, moments, bands, st.integers(-10, 60))
def test_pruning_below_any_bucket_that_is_passed_changes_nothing(
    messages: list[Times], tracking: datetime, band: timedelta, cut: int
) -> None:
    policy = replace(FRONTIER, band=band)
    histogram, before = histogram_of(messages), tracking - band
    pruned_before = min(START_US // BUCKET_US + cut, bucket_of(before))
    passed = frontier_of(histogram, bucket_start(pruned_before), policy, None, None)
    whole = frontier_of(histogram, before, policy, None, None)
    pruned = frontier_of(histogram.pruned(pruned_before), before, policy, pruned_before, passed)
    assert (pruned and pruned.min_event_time) == (whole and whole.min_event_time)


def _decision(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> Decision:
    ready = [effective((moment - START).total_seconds()) for moment in (base, tracking)]
    return estimate(
        situation_of(
            histogram,
            base=ready[0],
            tracking=ready[1],
            policy=policy,
            previous=None,
            complete_from=LONG_AGO,
            at=max(base, tracking),
        )
    )
