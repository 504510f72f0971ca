"""The laws of the watermark: the estimator against the same rules on lists of messages, and what never happens."""

import math
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import (
    LONG_AGO,
    START,
    START_BUCKET,
    START_US,
    Times,
    bounded,
    decide,
    effective,
    flat,
    histogram_of,
    ints,
    near_times,
    published,
    reading,
    seconds,
)
from tests.watermark.exact_rule import least_in_band
from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram, bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading, follow
from tidemark.pipeline.watermark.rules import frontier_of
from tidemark.pipeline.watermark.state import reachable_from

# ------------------------------------------------------------------------------------- against plain lists

TENTH = 100_000
tenths = st.integers(-50, 400).map(lambda tenth: START_US + tenth * TENTH)
timelines = st.lists(st.tuples(tenths, tenths).map(lambda times: (times[0], min(times))), max_size=40)
moments = st.integers(0, 400).map(lambda tenth: from_us(START_US + tenth * TENTH))
bands = st.sampled_from([0.0, 0.5, 1.0, 2.5, 10.0]).map(seconds)


def ready(oldest: datetime) -> EffectiveReading:
    """A reading without a backlog at its observation."""
    return effective((oldest - START).total_seconds())


@dataclass(frozen=True)
class Case:
    """Messages, both readings without a backlog, and a band."""

    messages: list[Times]
    base: datetime
    tracking: datetime
    band: timedelta

    def policy(self, **more: Any) -> Policy:
        return Policy(band=self.band, idle="hold", **more)

    def decide(self, histogram: Histogram | None = None, pruned_before: int | None = None, **policy: Any) -> Decision:
        """The decision on the messages, or on another histogram."""
        found = histogram_of(self.messages) if histogram is None else histogram
        readings = {"base": ready(self.base), "tracking": ready(self.tracking)}
        return decide(found, **readings, policy=self.policy(**policy), pruned_before=pruned_before)

    def exact(self, messages: list[Times]) -> int | None:
        """The rule `band` on exact times, from a plain list."""
        publish, event = ints(publish for publish, _ in messages), ints(event for _, event in messages)
        return least_in_band(publish, event, to_us(self.base), to_us(self.tracking), duration_us(self.band))


cases = st.builds(Case, timelines, moments, moments, bands)


@bounded
@given(cases)
def test_the_estimator_on_cells_is_never_above_the_rule_on_exact_times(case: Case) -> None:
    decision, expected = case.decide(), case.exact(case.messages)
    if expected is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    # What tracking has read beyond its own reading, in the same second, may hold it: with disorder within the band
    # it does not.
    last = to_us(case.tracking) // BUCKET_US
    in_that_second = [event for publish, event in case.messages if publish // BUCKET_US <= last]
    assert min(in_that_second) <= to_us(decision.watermark) <= expected


@bounded
@given(cases)
def test_where_no_cell_is_cut_through_the_estimator_is_the_rule_on_exact_times(case: Case) -> None:
    apart = {(publish // BUCKET_US, event // BUCKET_US): (publish, event) for publish, event in case.messages}
    read = [times for times in apart.values() if times[0] <= to_us(case.tracking)]
    watermark = case.decide(histogram_of(read)).watermark
    assert (None if watermark is None else to_us(watermark)) == case.exact(read)


dense = st.lists(st.tuples(near_times, near_times).map(lambda times: (times[0], min(times))), max_size=40)
near_moments = near_times.map(from_us)


@bounded
@given(st.builds(Case, dense, near_moments, near_moments, bands), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_with_a_quantile_the_estimator_is_the_rule_on_whole_buckets(case: Case, quantile: float) -> None:
    decision = case.decide(quantile=quantile)
    if flat(decision).anchor is None or flat(decision).band_start is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    first, last = bucket_of(flat(decision).band_start), bucket_of(case.tracking)
    by_bucket: dict[int, list[int]] = {}
    for publish, event in case.messages:
        if first <= publish // BUCKET_US <= last:
            by_bucket.setdefault(publish // BUCKET_US, []).append(event)
    lowest = []
    for events in by_bucket.values():
        at_quantile = sorted(events)[math.floor(quantile * len(events))]
        lowest.append(min(event for event in events if event // BUCKET_US == at_quantile // BUCKET_US))
    assert decision.watermark == from_us(min(lowest))
    assert flat(decision).messages_in_band == sum(map(len, by_bucket.values()))


@bounded
@given(cases)
def test_the_reachable_buckets_hold_the_whole_band_and_its_anchor(case: Case) -> None:
    histogram, whole = histogram_of(case.messages), case.decide()
    first = reachable_from(histogram, ready(case.base), ready(case.tracking), case.policy())
    found = flat(whole)
    assert first == bucket_of(found.band_start or min(case.base, case.tracking - case.band))
    assert found.anchor is None or first <= bucket_of(found.anchor)
    assert case.decide(histogram.pruned(first), pruned_before=first) == whole


@bounded
@given(cases)
def test_the_frontier_is_below_the_rule_on_exact_times_by_less_than_a_bucket(case: Case) -> None:
    decision = case.decide(rule="frontier")
    passed = [event for publish, event in case.messages if publish < to_us(case.tracking - case.band)]
    since = [event for publish, event in case.messages if publish >= to_us(case.base)]
    if not passed:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    expected = min([max(passed), *since])
    assert expected - BUCKET_US < to_us(decision.watermark) <= expected


@bounded
@given(timelines, moments, bands, st.integers(-10, 60))
def test_pruning_changes_no_frontier(messages: list[Times], tracking: datetime, band: timedelta, cut: int) -> None:
    policy = Policy(rule="frontier", band=band, idle="hold")
    histogram, before = histogram_of(messages), tracking - band
    pruned_before = min(START_BUCKET + cut, bucket_of(before))
    passed = frontier_of(histogram, bucket_start(pruned_before), policy, None, None)
    whole = frontier_of(histogram, before, policy, None, None)
    pruned = frontier_of(histogram.pruned(pruned_before), before, policy, pruned_before, passed)
    assert (pruned and pruned.min_event_time) == (whole and whole.min_event_time)


# ---------------------------------------------------------------------------------------------------- max_lag

MINUTE = timedelta(minutes=1)
lags = st.one_of(st.integers(0, 60_000_000), st.integers(62_000_000, 4_000_000_000))


@bounded
@given(
    st.lists(st.tuples(st.integers(0, 40_000_000), lags), max_size=30),
    moments,
    moments,
    st.sampled_from(["band", "frontier"]),
    st.sampled_from([0.0, 0.2]),
)
def test_a_decision_is_that_without_the_messages_that_max_lag_passes_over(
    drawn: list[Times], base: datetime, tracking: datetime, rule: Literal["band", "frontier"], quantile: float
) -> None:
    messages = [(START_US + publish, START_US + publish - lag) for publish, lag in drawn]
    prompt = [times for times, (_, lag) in zip(messages, drawn, strict=True) if lag <= duration_us(MINUTE)]
    policy = Policy(rule=rule, band=seconds(5), quantile=quantile)
    bounded_policy = replace(policy, max_lag=MINUTE)
    with_bound, without = (
        decide(histogram_of(counted), base=ready(base), tracking=ready(tracking), now=45, policy=each)
        for counted, each in ((messages, bounded_policy), (prompt, policy))
    )
    assert (with_bound.watermark, with_bound.reason) == (without.watermark, without.reason)
    if with_bound.bound is not None and without.bound is not None:
        bound = with_bound.bound
        assert bound.pin == without.bound.pin
        assert bound.messages - bound.passed_over == without.bound.messages


# ------------------------------------------------------------------------------------------- over many ticks

ticks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(-600, 3000), st.integers(-3000, 3000)), max_size=6),  # what is folded
        st.integers(0, 300),  # how long after the tick before
        st.one_of(st.none(), st.integers(0, 1500)),  # base's oldest is so old; None: no reading
        st.one_of(st.none(), st.integers(0, 1500)),  # and tracking's
    ),
    min_size=1,
    max_size=12,
)
policies = st.builds(
    Policy,
    rule=st.sampled_from(["band", "frontier"]),
    band=bands,
    idle=st.sampled_from(["advance", "hold"]),
    quantile=st.sampled_from([0.0, 0.2]),
    reading_slack=st.sampled_from([0.0, 1.0]).map(seconds),
    base_slack=st.sampled_from([0.0, 10.0]).map(seconds),
)


@bounded
@given(ticks, policies)
def test_the_watermark_never_goes_back(schedule: list[tuple[Any, int, int | None, int | None]], policy: Policy) -> None:
    histogram, base, tracking, now = Histogram.empty(), None, None, 0
    previous: Decision | None = None
    for folded, later, base_age, tracking_age in schedule:
        now += later
        histogram += published(folded)
        base = follow(base, _aged(now, base_age), policy.seek_tolerance)
        tracking = follow(tracking, _aged(now, tracking_age), policy.seek_tolerance)
        known_from = (previous and previous.complete_from) or LONG_AGO
        both = {"base": base, "tracking": tracking}
        decision = decide(histogram, **both, policy=policy, previous=previous, complete_from=known_from, now=now)
        if previous is not None and previous.watermark is not None:
            assert decision.watermark >= previous.watermark
            assert (decision.watermark > previous.watermark) == (
                decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED)
            )
        if previous is not None and previous.complete_from is not None:
            assert decision.complete_from >= previous.complete_from
        previous = decision


def _aged(now: int, age: int | None) -> Reading | None:
    return None if age is None else reading(now, now - age)


# --------------------------------------------------------------------------------------------------- readings

TOLERANCE = seconds(30)


def readings_from(steps: list[tuple[int, int]]) -> list[Reading]:
    """From steps of (time between observations, rise of the oldest unacknowledged publish time), in seconds."""
    observed, oldest = 0, 0
    result = []
    for later, rise in steps:
        observed, oldest = observed + later, oldest + rise
        result.append(reading(observed, oldest))
    return result


@bounded
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(-3, 40)), min_size=2, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_largest_reading_counts_in_any_order(steps: list[tuple[int, int]], shuffler: random.Random) -> None:
    first, *others = readings_from(steps)
    shuffler.shuffle(others)
    state = follow(None, first, TOLERANCE)
    for each in others:
        state = follow(state, each, TOLERANCE)
    assert state.epoch == 1
    largest = max(each.oldest_unacked for each in (first, *others))
    assert state.oldest_unacked == largest
    assert state.observed_at == max(each.observed_at for each in (first, *others) if each.oldest_unacked == largest)
    assert state.newest == max((first, *others), key=lambda each: each.observed_at)


@bounded
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(-100, 100)), min_size=1, max_size=12))
def test_within_an_epoch_the_effective_reading_never_falls_and_a_fall_is_an_epoch(steps: list[tuple[int, int]]) -> None:
    state: EffectiveReading | None = None
    of_epoch: list[Reading] = []
    for each in readings_from(steps):
        before, state = state, follow(state, each, TOLERANCE)
        if before is not None and each.oldest_unacked < before.oldest_unacked - TOLERANCE:
            assert state.epoch == before.epoch + 1
            of_epoch = []
        of_epoch.append(each)
        assert state.oldest_unacked == max(one.oldest_unacked for one in of_epoch)
        assert state.epoch_began == of_epoch[0].observed_at
