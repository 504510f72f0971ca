"""The estimator against the same rules on plain lists of messages, and its laws."""

import math
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import (
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
    ints,
    published,
    reading,
    seconds,
    situation_of,
)
from tests.watermark.exact_rule import least_in_band
from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram, bucket_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading, follow
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


def exact(messages: list[Times], base: datetime, tracking: datetime, band: timedelta) -> int | None:
    """The rule `band` on exact times, from a plain list."""
    publish, event = ints(publish for publish, _ in messages), ints(event for _, event in messages)
    return least_in_band(publish, event, to_us(base), to_us(tracking), duration_us(band))


@bounded
@given(timelines, moments, moments, bands)
def test_the_estimator_on_cells_is_never_above_the_rule_on_exact_times(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    policy = Policy(band=band, idle="hold")
    decision = decide(histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=policy)
    expected = exact(messages, base, tracking, band)
    if expected is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    assert decision.watermark is not None
    # What tracking has read beyond its own reading, in the same second, may hold it: with disorder within the band
    # it does not.
    in_that_second = [event for publish, event in messages if publish // BUCKET_US <= to_us(tracking) // BUCKET_US]
    assert min(in_that_second) <= to_us(decision.watermark) <= expected


@bounded
@given(timelines, moments, moments, bands)
def test_where_no_cell_is_cut_through_the_estimator_is_the_rule_on_exact_times(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    apart = list({(publish // BUCKET_US, event // BUCKET_US): (publish, event) for publish, event in messages}.values())
    read = [times for times in apart if times[0] <= to_us(tracking)]
    policy = Policy(band=band, idle="hold")
    decision = decide(histogram_of(read), base=ready(base), tracking=ready(tracking), policy=policy)
    expected = exact(read, base, tracking, band)
    assert (None if decision.watermark is None else to_us(decision.watermark)) == expected


@bounded
@given(timelines, moments, moments, bands, st.sampled_from([0.1, 0.5]))
def test_with_a_quantile_the_estimator_is_the_rule_on_whole_buckets(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta, quantile: float
) -> None:
    policy = Policy(band=band, idle="hold", quantile=quantile)
    decision = decide(histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=policy)
    if flat(decision).anchor is None or flat(decision).band_start is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    first, last = bucket_of(flat(decision).band_start), bucket_of(tracking)
    by_bucket: dict[int, list[int]] = {}
    for publish, event in messages:
        if first <= publish // BUCKET_US <= last:
            by_bucket.setdefault(publish // BUCKET_US, []).append(event)
    lowest = []
    for events in by_bucket.values():
        at_quantile = sorted(events)[math.floor(quantile * len(events))]
        lowest.append(min(event for event in events if event // BUCKET_US == at_quantile // BUCKET_US))
    assert decision.watermark == from_us(min(lowest))
    assert flat(decision).messages_in_band == sum(map(len, by_bucket.values()))


@bounded
@given(timelines, moments, moments, bands)
def test_the_reachable_buckets_hold_the_whole_band_and_its_anchor(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    histogram, policy = histogram_of(messages), Policy(band=band, idle="hold")
    first = reachable_from(histogram, ready(base), ready(tracking), policy)
    whole = decide(histogram, base=ready(base), tracking=ready(tracking), policy=policy)
    found = flat(whole)
    assert first == bucket_of(found.band_start or min(base, tracking - band))
    assert found.anchor is None or first <= bucket_of(found.anchor)
    pruned = decide(
        histogram.pruned(first), base=ready(base), tracking=ready(tracking), policy=policy, pruned_before=first
    )
    assert pruned == whole


@bounded
@given(timelines, moments, moments)
def test_removing_the_anchor_never_holds_the_watermark_further_back(
    messages: list[Times], base: datetime, tracking: datetime
) -> None:
    anchored = decide(
        histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=Policy(band=seconds(1))
    )
    free = decide(
        histogram_of(messages),
        base=ready(base),
        tracking=ready(tracking),
        policy=Policy(band=seconds(1)),
        rules=RULES_WITHOUT_ANCHOR,
    )
    if anchored.watermark is not None and free.watermark is not None:
        assert free.watermark >= anchored.watermark
    else:
        assert anchored.watermark is None or free.reason is Reason.HELD_NO_DATA


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
def test_the_watermark_never_goes_back(
    schedule: list[tuple[list[tuple[float, float]], int, int | None, int | None]], policy: Policy
) -> None:
    histogram = Histogram.empty()
    base: EffectiveReading | None = None
    tracking: EffectiveReading | None = None
    previous: Decision | None = None
    now = 0
    for folded, later, base_age, tracking_age in schedule:
        now += later
        histogram += published(folded)
        base = follow(base, _aged(now, base_age), policy.seek_tolerance)
        tracking = follow(tracking, _aged(now, tracking_age), policy.seek_tolerance)
        decision = estimate(
            situation_of(
                histogram,
                base=base,
                tracking=tracking,
                policy=policy,
                previous=previous,
                complete_from=LONG_AGO
                if previous is None or previous.complete_from is None
                else previous.complete_from,
                at=at(now),
            )
        )
        if previous is not None and previous.watermark is not None:
            assert decision.watermark is not None
            assert decision.watermark >= previous.watermark
            assert (decision.watermark > previous.watermark) == (
                decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED)
            )
        if previous is not None and previous.complete_from is not None:
            assert decision.complete_from is not None
            assert decision.complete_from >= previous.complete_from
        previous = decision


def _aged(now: int, age: int | None) -> Reading | None:
    return None if age is None else reading(now, now - age)


# --------------------------------------------------------------------------------------------------- disorder
