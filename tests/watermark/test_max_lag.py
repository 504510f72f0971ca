"""What lags more than `max_lag` does not hold the watermark: a rule over cells, without a memory of streams."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import (
    EVERY_SECOND,
    START_US,
    Times,
    at,
    beats,
    bounded,
    decide,
    effective,
    flat,
    histogram_of,
    published,
    seconds,
)
from tests.watermark.fold import Log
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram, holding, passed_over
from tidemark.pipeline.watermark.policy import Policy

RuleName = Literal["band", "frontier"]
both_rules = pytest.mark.parametrize("rule", ["band", "frontier"])
MINUTE = timedelta(minutes=1)


def _decided(histogram: Histogram) -> Decision:
    return decide(histogram, base=effective(100), tracking=effective(100), policy=Policy(max_lag=MINUTE))


@both_rules
def test_an_old_message_every_nine_seconds_holds_everybody_and_nobody_with_max_lag(rule: RuleName) -> None:
    """One source, an hour behind, for ten minutes; each of its messages takes 4 s to land."""
    stood: dict[timedelta | None, list[datetime | None]] = {}
    for max_lag in (None, MINUTE):
        log = Log(Policy(rule=rule, max_lag=max_lag))
        log.publish(published(beats(0, 60)))
        log.tick(60)
        for now in range(70, 661, 10):
            old = [(second + 0.5, second - 3600) for second in range(now - 10, now) if second % 9 == 0]
            log.publish(published([*beats(now - 10, now), *old]))
            log.tick(now, base=now - 9.9)
            decision = log.state.decision
            assert decision is not None
            stood.setdefault(max_lag, []).append(decision.watermark)
            if max_lag is not None:  # never further back than the band and what base has not landed, and the lag of 1 s
                assert decision.lag is not None
                assert decision.lag <= log.policy.band + seconds(12)
    assert len(set(stood[None])) == 1
    assert len(set(stood[MINUTE])) == len(stood[MINUTE])


def test_what_lags_exactly_max_lag_holds_and_what_lags_two_seconds_more_does_not() -> None:
    for lag in (59.0, 60.0):
        late = EVERY_SECOND + published([(95.25, 95.25 - lag)])
        assert _decided(late).watermark == at(95.25 - lag)
    assert _decided(EVERY_SECOND + published([(95.25, 95.25 - 62)])).watermark == at(88)


@bounded
@given(st.integers(0, 10_000_000), st.integers(0, 100_000_000), st.integers(0, 3))
def test_a_lag_within_max_lag_is_never_passed_over_and_one_two_seconds_beyond_always_is(
    publish: int, lag: int, others: int
) -> None:
    times = (START_US + publish, START_US + publish - lag)
    # Others of the same cell, with any lag that such have.
    cell = [tuple(time // BUCKET_US * BUCKET_US + 250_000 * number for time in times) for number in range(others)]
    histogram = histogram_of([times, *((publish, event) for publish, event in cell)])
    over = passed_over(histogram, MINUTE)
    assert lag > to_us(at(60)) - START_US or not over
    assert lag < to_us(at(62)) - START_US or over == 1 + others or len(histogram) > 1
    assert len(holding(histogram, MINUTE)) == (0 if over else len(histogram))


def test_the_anchor_that_holds_is_never_pruned() -> None:
    log = Log(Policy(max_lag=MINUTE))
    log.publish(published([*beats(0, 50), *((second, second - 600) for second in range(50, 100))]))
    decision = log.tick(110)
    assert (decision.watermark, log.state.pruned_before) == (at(48.25), to_us(at(49)) // BUCKET_US)
    log.publish(published([(112, 111)]))
    assert log.tick(115).watermark == at(48.25)
    assert log.tick(123).watermark == at(111)


def test_where_everything_lags_more_the_explanation_says_so() -> None:
    log = Log(Policy(max_lag=MINUTE))
    log.publish(published((second, second - 600) for second in range(100)))
    assert log.tick(120).reason is Reason.HELD_NO_DATA
    assert "All 100 messages that tracking knows of lag more than 1m (max_lag)" in " ".join(log.explain().moves)


def test_the_explanation_counts_what_is_passed_over_and_tries_a_bound() -> None:
    log = Log(Policy(max_lag=timedelta(minutes=10)))
    log.publish(EVERY_SECOND + published([(95.5, -3600), (96.5, -90)]))
    assert log.tick(100).watermark == at(-90)
    (text,) = [one.text for one in log.explain().conditions if one.rule == "data"]
    assert text.endswith("These include at most 1 message passed over for a lag of more than 10m (max_lag).")
    tried = {one.setting: one for one in log.explain().alternatives or ()}
    assert (tried["max_lag"].value, tried["max_lag"].watermark) == ("1m", at(88))


def test_what_was_passed_over_is_kept_with_the_decision() -> None:
    log = Log(Policy(max_lag=MINUTE))
    log.publish(EVERY_SECOND + published([(95.5, -3600)]))
    log.tick(100)
    assert log.state.record is not None
    again = decode(encode(log.state.record, "me"), "name")
    assert again == log.state.record
    assert flat(log.state.record.decision).passed_over == 1
    assert log.state.record.policy.max_lag == MINUTE


lags = st.one_of(st.integers(0, 60_000_000), st.integers(62_000_000, 4_000_000_000))
timelines = st.lists(st.tuples(st.integers(0, 40_000_000), lags), max_size=30)
moments = st.integers(0, 40_000_000).map(lambda us: from_us(START_US + us))


@bounded
@given(timelines, moments, moments, st.sampled_from(["band", "frontier"]), st.sampled_from([0.0, 0.2]))
def test_a_decision_is_that_without_the_messages_that_are_passed_over(
    drawn: list[Times], base: datetime, tracking: datetime, rule: RuleName, quantile: float
) -> None:
    messages = [(START_US + publish, START_US + publish - lag) for publish, lag in drawn]
    prompt = [times for times, (_, lag) in zip(messages, drawn, strict=True) if lag <= 60_000_000]
    policy = Policy(rule=rule, band=seconds(5), quantile=quantile)
    readings = [effective((moment - at(0)).total_seconds()) for moment in (base, tracking)]
    arguments = {"base": readings[0], "tracking": readings[1], "now": 45.0}
    with_bound = decide(histogram_of(messages), policy=replace(policy, max_lag=MINUTE), **arguments)  # type: ignore[arg-type]
    without = decide(histogram_of(prompt), policy=policy, **arguments)  # type: ignore[arg-type]
    assert (with_bound.watermark, with_bound.reason) == (without.watermark, without.reason)
    if with_bound.bound is not None and without.bound is not None:
        bound = with_bound.bound
        assert bound.pin == without.bound.pin
        assert bound.messages - bound.passed_over == without.bound.messages
