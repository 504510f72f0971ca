"""Broken readings, histograms, and estimates, planted like `broken_parts`: each says by its name what it does wrong."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from tests.simulation.faults import (
    any_lag,
    both,
    bounded,
    by_band,
    by_frontier,
    hole,
    idle,
    just_in_time,
    kept,
    operated,
    plant,
    quantiles,
    slack,
    soon,
    sought,
)
from tests.watermark.builders import LONG_AGO
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, bound_without_anchor
from tidemark.pipeline.watermark import estimator, readings, rules, state
from tidemark.pipeline.watermark.decision import Decision, SilenceEvidence
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, Cell, Histogram, Ints, bucket_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.rules import (
    RULES,
    Candidate,
    Held,
    Verdict,
    anchor_before,
    band_start,
    bound,
    complete,
    least_since,
    silence,
)
from tidemark.pipeline.watermark.situation import Situation

ZERO = timedelta(0)
STATE = "tidemark.pipeline.watermark.state"
HISTOGRAM = "tidemark.pipeline.watermark.histogram.Histogram"
FAR_AHEAD = datetime(2200, 1, 1, tzinfo=UTC)
Followed = EffectiveReading | None

original_follow = readings.follow
original_advance = estimator.advance
original_frontier_before, original_valid_before = Histogram.frontier_before, Histogram.newest_valid_before


@plant("the newest reading, not the largest", f"{STATE}.follow", 5)
def follow_the_newest(previous: Followed, reading: Reading | None, tolerance: timedelta) -> Followed:
    followed = original_follow(previous, reading, tolerance)
    if followed is None or reading is None or followed.newest is not reading:
        return followed
    return replace(
        followed,
        oldest_unacked=reading.oldest_unacked,
        names_a_message=reading.names_a_message,
        observed_at=reading.observed_at,
    )


@plant("a seek is a reading like any other", f"{STATE}.follow", 1)
def follow_without_seeks(previous: Followed, reading: Reading | None, tolerance: timedelta) -> Followed:
    return original_follow(previous, reading, timedelta(days=10_000))


@plant("a reading from before a seek counts", f"{STATE}.follow", 468, sought)
def follow_from_before_the_epoch(previous: Followed, reading: Reading | None, tolerance: timedelta) -> Followed:
    """What was observed before a seek counts after it."""
    ever = None if previous is None else replace(previous, epoch_began=LONG_AGO)
    followed = original_follow(ever, reading, tolerance)
    if followed is None or previous is None or followed.epoch != previous.epoch:
        return followed
    return replace(followed, epoch_began=previous.epoch_began)


@plant("a reading that comes late is a seek", f"{STATE}.follow", 5)
def follow_in_order_of_arrival(previous: Followed, reading: Reading | None, tolerance: timedelta) -> Followed:
    """What was observed before, and comes later, is taken for a seek."""
    if previous is not None and reading is not None and reading.observed_at >= previous.epoch_began:
        previous = replace(previous, newest=replace(previous.newest, observed_at=LONG_AGO))
    return original_follow(previous, reading, tolerance)


@plant("seen again is not noticed", f"{STATE}.follow")
def follow_without_looking_again(previous: Followed, reading: Reading | None, tolerance: timedelta) -> Followed:
    """The same reading, observed later, is as old as it was."""
    followed = original_follow(previous, reading, tolerance)
    if previous is None or followed is None or followed.oldest_unacked != previous.oldest_unacked:
        return followed
    return replace(followed, observed_at=previous.observed_at)


@plant("complete_from is ignored", complete, 3, kept, judged_by=RULES)
def complete_whatever_is_known(s: Situation) -> Verdict:
    return complete(replace(s, complete_from=LONG_AGO))


@plant("no look for holes", complete, 611, hole)
def complete_without_a_look_for_holes(s: Situation) -> Verdict:
    base = s.base and replace(s.base, names_a_message=False, newest=replace(s.base.newest, names_a_message=False))
    return complete(replace(s, base=base))


@plant("what was pruned is a hole", complete, 821, sought)
def complete_with_holes_in_what_was_pruned(s: Situation) -> Verdict:
    return complete(replace(s, pruned_before=None))


@plant("decided without an anchor", bound, 301, both(by_band, soon))
def band_without_need_of_an_anchor(s: Situation) -> Verdict:
    verdict = bound(s)
    return bound_without_anchor(s) if isinstance(verdict, Held) else verdict


@plant("decided without a frontier", bound, 485, both(by_frontier, soon))
def frontier_without_need_of_one(s: Situation) -> Verdict:
    verdict = bound(s)
    return (
        bound_without_anchor(replace(s, policy=replace(s.policy, rule="band")))
        if isinstance(verdict, Held)
        else verdict
    )


@plant("the frontier alone", bound, 0, by_frontier)
def frontier_alone(s: Situation) -> Verdict:
    return bound(replace(s, base=replace(s.base, oldest_unacked=FAR_AHEAD)))


@plant("idle without the lag", silence, 13, idle)
def silence_without_the_lag(s: Situation) -> Verdict:
    verdict = silence(s)
    if not (isinstance(verdict, Candidate) and isinstance(verdict.evidence, SilenceEvidence)):
        return verdict
    evidence = verdict.evidence
    return replace(verdict, evidence=SilenceEvidence(evidence.candidate + evidence.recent_lag, ZERO))


@plant("idle whatever base holds", silence, 203, idle)
def silence_whatever_base_holds(s: Situation) -> Verdict:
    verdict = silence(replace(s, base=s.tracking))
    if not (isinstance(verdict, Candidate) and isinstance(verdict.evidence, SilenceEvidence)):
        return verdict
    lag = verdict.evidence.recent_lag
    candidate = min(s.oldest_base, s.oldest_tracking) - s.policy.band - lag
    return replace(verdict, evidence=SilenceEvidence(candidate, lag))


@plant("the watermark follows the candidate back", "tidemark.pipeline.watermark.estimator.advance", 19)
def advance_or_go_back(s: Situation, verdicts: Sequence[Verdict]) -> Decision:
    is_candidate = isinstance(verdicts[-1], Candidate)
    return original_advance(replace(s, watermark=None) if is_candidate else s, verdicts)


@plant("what is passed over is an anchor", bound, 2, bounded)
def band_with_an_anchor_that_does_not_hold(s: Situation) -> Verdict:
    if s.policy.rule == "frontier":
        return bound(s)
    anchor = anchor_before(s.histogram, s.band_edge)
    return bound(s) if anchor is None else least_since(s, band_start(s.oldest_base, s.band_edge, anchor), anchor)


@plant("pruned by an anchor that is passed over", f"{STATE}.reachable_from", 80, bounded)
def reachable_by_an_anchor_that_does_not_hold(histogram: Histogram, base: Any, tracking: Any, policy: Policy) -> int:
    return original_reachable(histogram, base, tracking, replace(policy, max_lag=None))


@plant("max_lag by a cell's least event time", f"{HISTOGRAM}._is_passed_over", 56, bounded)
def passed_over_by_the_least_event_time(histogram: Histogram, max_lag: timedelta) -> Any:
    is_timed = histogram.event_bucket > COPY
    least_us = np.where(is_timed, histogram.min_event_us, histogram.first_publish_us)
    return is_timed & (histogram.first_publish_us - least_us > duration_us(max_lag))


@plant("max_lag by a cell's first edge", f"{HISTOGRAM}._is_passed_over", 11, bounded)
def passed_over_by_the_start_of_the_bucket(histogram: Histogram, max_lag: timedelta) -> Any:
    is_timed = histogram.event_bucket > COPY
    starts_us = np.where(is_timed, histogram.event_bucket, 0) * BUCKET_US
    return is_timed & (histogram.first_publish_us - starts_us >= duration_us(max_lag))


@plant("<= for < in the frontier", f"{HISTOGRAM}.frontier_before", 343, both(just_in_time, by_frontier))
def frontier_with_ties(histogram: Histogram, limit_us: int, not_before: int) -> Cell | None:
    return original_frontier_before(histogram, limit_us + 1, not_before)


@plant("what was passed before is forgotten", f"{STATE}.frontier_of", 115, by_frontier)
def frontier_without_what_was_passed(
    histogram: Histogram, before: datetime, policy: Policy, pruned_before: int | None, _passed: Cell | None
) -> Cell | None:
    return original_frontier_of(histogram, before, policy, pruned_before, None)


@plant("<= for < in the anchor", f"{HISTOGRAM}.newest_valid_before", 703, both(just_in_time, by_band))
def anchor_with_ties(histogram: Histogram, limit_us: int) -> int | None:
    return original_valid_before(histogram, limit_us + 1)


@plant("a quantile of the whole band", f"{HISTOGRAM}.quantile_between", 64, quantiles)
def quantile_of_the_whole_band(histogram: Histogram, low: int, high: int, quantile: float) -> Cell | None:
    cells = sorted((histogram.min_event_us[position], position) for position in histogram._valid(low, high))
    skipped = math.floor(quantile * sum(int(histogram.count[position]) for _, position in cells))
    for _, position in cells:
        skipped -= int(histogram.count[position])
        if skipped < 0:
            return histogram._cell(position)
    return None


@plant("pruned a bucket too far", f"{STATE}.reachable_from", 2)
def reachable_a_bucket_less(*arguments: Any) -> int:
    """A bucket too many is pruned."""
    return original_reachable(*arguments) + 1


@plant("pruned without slack", f"{STATE}.reachable_from", 5, slack)
def reachable_without_slack(histogram: Histogram, base: Any, tracking: Any, policy: Policy) -> int:
    return original_reachable(histogram, base, tracking, replace(policy, base_slack=ZERO, reading_slack=ZERO))


@plant("pruned without an anchor", f"{STATE}.reachable_from", 4)
def reachable_without_the_anchor(_histogram: Histogram, base: Any, tracking: Any, policy: Policy) -> int:
    edge = tracking.oldest_unacked - policy.reading_slack - policy.band
    return bucket_of(min(base.oldest_unacked - policy.base_slack, edge))


@plant("a rejected message is an anchor", f"{HISTOGRAM}.newest_valid_before", 49, by_band)
def anchor_by_what_is_rejected(histogram: Histogram, limit_us: int) -> int | None:
    as_if_timed = np.where(histogram.event_bucket > COPY, histogram.event_bucket, 0)
    return original_valid_before(replace(histogram, event_bucket=as_if_timed), limit_us)


@plant("> for >= at base's oldest", f"{HISTOGRAM}.since", 2, kept)
def since_without_the_oldest(histogram: Histogram, publish_us: int, high: int) -> Ints:
    """`>` for `>=`: base's oldest message is left out."""
    return original_since(histogram, publish_us + 1, high)


@plant("the frontier is the end of its cell", f"{HISTOGRAM}.frontier_before", 67, by_frontier)
def frontier_at_the_end_of_its_cell(histogram: Histogram, limit_us: int, not_before: int) -> Cell | None:
    cell = original_frontier_before(histogram, limit_us, not_before)
    return cell and replace(cell, min_event_time=cell.min_event_time + timedelta(microseconds=BUCKET_US))


@plant("idle by the least lag", f"{HISTOGRAM}.greatest_lag_us", 1187, idle)
def least_lag(histogram: Histogram, publish_bucket: int) -> int:
    """The least lag of the newest second instead of the greatest."""
    cells = histogram._valid(publish_bucket, publish_bucket)
    return int((histogram.last_publish_us[cells] - histogram.min_event_us[cells]).min())


@plant("a rejected message is a hole", f"{HISTOGRAM}.next_occupied", 109)
def occupied_by_heartbeats_alone(histogram: Histogram, publish_bucket: int) -> int | None:
    """Where only a rejected message was published, tracking seems to have seen none."""
    return original_next(histogram.only(histogram.event_bucket > COPY), publish_bucket)


original_reachable, original_since, original_next = state.reachable_from, Histogram.since, Histogram.next_occupied
original_frontier_of = rules.frontier_of

plant("no anchor", "rules", 131, by_band)(RULES_WITHOUT_ANCHOR)
plant("a release outlives a seek", f"{STATE}.was_sought", 585, both(operated, sought))(lambda *_: False)
plant("a clock that runs fast counts as it says", "tidemark.pipeline.watermark.histogram.clamped", 18, by_frontier)(
    lambda event_us, _publish_us: event_us
)
plant("the running frontier is forgotten", f"{STATE}.frontier_of", 115, by_frontier)(lambda *_: None)
plant("no slack", "policy", 32, slack)(lambda policy: replace(policy, base_slack=ZERO, reading_slack=ZERO))
plant("no slack for base", "policy", 5, slack)(lambda policy: replace(policy, base_slack=ZERO))
plant("no slack for tracking", "policy", 5, both(any_lag, slack))(lambda policy: replace(policy, reading_slack=ZERO))
