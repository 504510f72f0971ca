"""Broken readings, histograms, and estimates, planted like `broken_parts`: each says by its name what it does wrong."""

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from pipeline.watermark import estimator, readings
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.histogram import BUCKET_US, NO_EVENT, Cell, Histogram, Ints, bucket_of
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading
from tests.watermark.builders import LONG_AGO

ZERO = timedelta(0)

original_follow = readings.follow
original_estimate = estimator.estimate
original_band, original_frontier = estimator._band, estimator._frontier
original_frontier_before, original_valid_before = Histogram.frontier_before, Histogram.newest_valid_before


def follow_the_newest(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    followed = original_follow(previous, reading, tolerance)
    if followed is None or reading is None or followed.newest is not reading:
        return followed
    return replace(
        followed,
        oldest_unacked=reading.oldest_unacked,
        names_a_message=reading.names_a_message,
        observed_at=reading.observed_at,
    )


def follow_without_seeks(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    return original_follow(previous, reading, timedelta(days=10_000))


def follow_from_before_the_epoch(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    """What was observed before a seek counts after it."""
    ever = None if previous is None else replace(previous, epoch_began=LONG_AGO)
    followed = original_follow(ever, reading, tolerance)
    if followed is None or previous is None or followed.epoch != previous.epoch:
        return followed
    return replace(followed, epoch_began=previous.epoch_began)


def follow_in_order_of_arrival(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    """What was observed before, and comes later, is taken for a seek."""
    if previous is not None and reading is not None and reading.observed_at >= previous.epoch_began:
        previous = replace(previous, newest=replace(previous.newest, observed_at=LONG_AGO))
    return original_follow(previous, reading, tolerance)


def follow_without_looking_again(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    """The same reading, observed later, is as old as it was."""
    followed = original_follow(previous, reading, tolerance)
    if previous is None or followed is None or followed.oldest_unacked != previous.oldest_unacked:
        return followed
    return replace(followed, observed_at=previous.observed_at)


def estimate_as_if_complete(histogram: Histogram, *, complete_from: datetime, **others: Any) -> Decision:
    return replace(original_estimate(histogram, complete_from=LONG_AGO, **others), complete_from=complete_from)


def band_without_need_of_an_anchor(histogram: Histogram, base: Any, tracking: Any, policy: Policy) -> Any:
    bound = original_band(histogram, base, tracking, policy)
    return bound or original_band(histogram, base, tracking, replace(policy, anchor=False))


def frontier_without_need_of_one(histogram: Histogram, base: Any, tracking: Any, policy: Policy, *more: Any) -> Any:
    bound = original_frontier(histogram, base, tracking, policy, *more)
    return bound or original_band(histogram, base, tracking, replace(policy, anchor=False))


def frontier_alone(histogram: Histogram, base: datetime, tracking: Any, policy: Policy, *more: Any) -> Any:
    return original_frontier(histogram, base.replace(year=2200), tracking, policy, *more)


def frontier_with_ties(histogram: Histogram, limit_us: int, not_before: int, quantile: float = 0.0) -> Cell | None:
    return original_frontier_before(histogram, limit_us + 1, not_before, quantile)


def frontier_without_what_was_passed(
    histogram: Histogram, before: datetime, policy: Policy, pruned_before: int | None, _passed: Cell | None
) -> Cell | None:
    return original_frontier_of(histogram, before, policy, pruned_before, None)


def anchor_with_ties(histogram: Histogram, limit_us: int) -> int | None:
    return original_valid_before(histogram, limit_us + 1)


def quantile_of_the_whole_band(histogram: Histogram, low: int, high: int, quantile: float) -> Cell | None:
    start, end = histogram._span(low, high)
    cells = sorted(
        (histogram.min_event_us[position], position)
        for position in range(start, end)
        if histogram._cell(position) is not None
    )
    skipped = math.floor(quantile * sum(int(histogram.count[position]) for _, position in cells))
    for _, position in cells:
        skipped -= int(histogram.count[position])
        if skipped < 0:
            return histogram._cell(position)
    return None


def decided_anyway(held: Any, candidate: datetime, moved: Reason, unmoved: Reason) -> Decision:
    return replace(held.because(unmoved), watermark=candidate, reason=moved, candidate=candidate)


def idle_whatever_base_holds(histogram: Histogram, base: Any, tracking: Any, policy: Policy, *more: Any) -> bool:
    return original_idle(histogram, tracking, tracking, policy, *more)


original_idle = estimator.is_idle


def reachable_a_bucket_less(*arguments: Any) -> int:
    """A bucket too many is pruned."""
    return original_reachable(*arguments) + 1


def reachable_without_slack(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> int:
    return original_reachable(histogram, base, tracking, replace(policy, base_slack=ZERO, reading_slack=ZERO))


def reachable_without_the_anchor(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> int:
    start = min(base - policy.base_slack, tracking - policy.reading_slack - policy.band)
    return bucket_of(start)


def anchor_by_what_is_rejected(histogram: Histogram, limit_us: int) -> int | None:
    as_if_timed = np.where(histogram.event_bucket == NO_EVENT, 0, histogram.event_bucket)
    return original_valid_before(replace(histogram, event_bucket=as_if_timed), limit_us)


def since_without_the_oldest(histogram: Histogram, publish_us: int, high: int) -> slice | Ints:
    """`>` for `>=`: base's oldest message is left out."""
    return original_since(histogram, publish_us + 1, high)


def frontier_at_the_end_of_its_cell(
    histogram: Histogram, limit_us: int, not_before: int, quantile: float = 0.0
) -> Cell | None:
    cell = original_frontier_before(histogram, limit_us, not_before, quantile)
    return cell and replace(cell, min_event_time=cell.min_event_time + timedelta(microseconds=BUCKET_US))


def least_lag(histogram: Histogram, publish_bucket: int) -> int:
    """Of the newest second, for the greatest."""
    start, end = histogram._span(publish_bucket, publish_bucket)
    valid = histogram.event_bucket[start:end] != NO_EVENT
    return int((histogram.last_publish_us[start:end] - histogram.min_event_us[start:end])[valid].min())


def occupied_by_heartbeats_alone(histogram: Histogram, publish_bucket: int) -> bool:
    """Where only a rejected message was published, tracking seems to have seen none."""
    start, end = histogram._span(publish_bucket, publish_bucket)
    return bool((histogram.event_bucket[start:end] != NO_EVENT).any())


def hole_in_what_was_pruned(histogram: Histogram, base: Any, tracking: Any, slack: timedelta, _pruned: Any) -> Any:
    return original_hole(histogram, base, tracking, slack, None)


original_reachable, original_hole, original_since = estimator.reachable_from, estimator._end_of_hole, Histogram.since
original_frontier_of = estimator.frontier_of
