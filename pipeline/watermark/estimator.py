"""The estimator: from what was published and what is outstanding to the watermark, or to a reason to hold it.

Guarantee: with disorder at most `policy.band` (see `docs/watermark.md`), no message that is still to land has an
event time below the watermark, while the idle rule has not fired; where it has, provided that after a silence
`publish time - event time <= recent lag + band`.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pipeline.clock import from_us, to_us
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.histogram import BUCKET_US, Cell, Histogram, bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading

ZERO = timedelta(0)
BEFORE_ALL, AFTER_ALL = -(1 << 62), 1 << 62
"""Buckets beyond any moment."""


@dataclass(frozen=True, slots=True)
class Band:
    """The publish times that are looked at, `[start, end]`, and the anchor's if there is one."""

    start: datetime
    end: datetime
    anchor: datetime | None


def estimate(
    histogram: Histogram,
    *,
    base: EffectiveReading | None,
    tracking: EffectiveReading | None,
    policy: Policy,
    previous: Decision | None,
    complete_from: datetime,
    at: datetime,
    pruned_before: int | None = None,
    passed: Cell | None = None,
    released_before: datetime | None = None,
) -> Decision:
    """One decision. Pure: the same arguments give the same decision, bit for bit.

    `histogram` holds every message that is acknowledged on tracking with `publish time >= complete_from`, less the
    buckets below `pruned_before`, whose frontier is `passed`. `base` and `tracking` are the effective readings,
    tracking's taken after what it acknowledged was persisted. `previous` is the last decision of the same log; `at`
    is now. What was published before `released_before` and has not landed is let go: it holds nothing, and is late.
    """
    held = _Held(
        at=at,
        previous=previous,
        base=base,
        tracking=tracking,
        complete_from=complete_from,
        histogram=histogram,
    )
    if base is None or tracking is None or is_stale(base, at, policy) or is_stale(tracking, at, policy):
        return held.because(Reason.HELD_STALE_READING)
    if previous is not None and (was_sought(base, previous.base) or was_sought(tracking, previous.tracking)):
        return held.because(Reason.HELD_SEEK)

    oldest_base = base.oldest_unacked - policy.base_slack
    oldest_tracking = tracking.oldest_unacked - policy.reading_slack
    hole_ends = None
    if released_before is not None and released_before > base.oldest_unacked:  # else base has passed it, slack or not
        oldest_base = released_before
        held = replace(held, released_before=released_before)
    else:
        hole_ends = _end_of_hole(histogram, base, oldest_tracking, policy.base_slack, pruned_before)
    if hole_ends is not None:
        held = replace(held, complete_from=max(complete_from, hole_ends))
    if hole_ends is not None or oldest_base < complete_from:
        return held.because(Reason.HELD_INCOMPLETE)
    is_ahead = oldest_tracking - oldest_base >= policy.band
    if not (is_ahead or has_no_backlog(tracking, policy)):
        return held.because(Reason.HELD_TRACKING_BEHIND)

    idle = is_idle(histogram, base, tracking, policy)
    if idle and policy.idle == "advance":
        lag = recent_lag(histogram, policy.max_idle_lag)
        candidate = min(oldest_base, oldest_tracking) - policy.band - lag
        return replace(held.decided(candidate, Reason.IDLE_ADVANCED, Reason.UNCHANGED), recent_lag=lag)

    if policy.rule == "frontier":
        bounded = _frontier(histogram, oldest_base, oldest_tracking, policy, pruned_before, passed)
    else:
        bounded = _band(histogram, oldest_base, oldest_tracking, policy)
    if bounded is None:
        return held.because(Reason.HELD_NO_DATA)
    if idle:
        unmoved = Reason.IDLE_HELD
    elif oldest_base < oldest_tracking - policy.band and bounded.pin.publish_bucket >= bucket_of(oldest_base):
        unmoved = Reason.PINNED_BY_BACKLOG
    else:
        unmoved = Reason.UNCHANGED
    moved = Reason.ADVANCED if held.released_before is None else Reason.RELEASED
    return replace(
        held.decided(bounded.pin.min_event_time, moved, unmoved),
        band_start=bounded.start,
        band_end=bounded.end,
        anchor=bounded.anchor,
        pin=bounded.pin,
        frontier=bounded.frontier,
        messages_in_band=bounded.messages,
    )


@dataclass(frozen=True, slots=True)
class _Bound:
    """What bounds the event times of all that may still land, from below: the pin, and where it was looked for."""

    pin: Cell
    start: datetime
    end: datetime
    anchor: datetime | None
    messages: int
    frontier: datetime | None = None


def _band(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> _Bound | None:
    """The rule `band`: the least event time of the band. None without an anchor, or without a message."""
    band = band_of(histogram, base, tracking, policy)
    least, messages = _least(histogram, band.start, bucket_of(band.end), policy)
    if least is None or (policy.anchor and band.anchor is None):
        return None
    return _Bound(least, band.start, band.end, band.anchor, messages)


def _frontier(
    histogram: Histogram,
    base: datetime,
    tracking: datetime,
    policy: Policy,
    pruned_before: int | None,
    passed: Cell | None,
) -> _Bound | None:
    """The rule `frontier`: the lesser of the least event time published since `base`, which bounds what tracking has
    seen, and the frontier, which bounds what it has not. None without a frontier."""
    frontier = frontier_of(histogram, tracking - policy.band, policy, pruned_before, passed)
    if frontier is None:
        return None
    outstanding, messages = _least(histogram, base, AFTER_ALL, policy)
    pin = frontier
    if outstanding is not None and outstanding.min_event_time < frontier.min_event_time:
        pin = outstanding
    return _Bound(
        pin=pin,
        start=base,
        end=tracking,
        anchor=None,
        messages=messages,
        frontier=frontier.min_event_time,
    )


def frontier_of(
    histogram: Histogram, before: datetime, policy: Policy, pruned_before: int | None, passed: Cell | None
) -> Cell | None:
    """The cell of the greatest event time that was published before a moment.

    Whatever is published a band after a message or later has, by the definition of disorder, an event time not below
    that message's. `passed` stands for the buckets below `pruned_before`. It is no use where those reach beyond the
    moment, as after a seek of tracking or with a wider band: then None, until tracking has come there again.
    """
    if pruned_before is not None and pruned_before > bucket_of(before):
        return None
    known_from = BEFORE_ALL if pruned_before is None else pruned_before
    newer = histogram.frontier_before(to_us(before), known_from, policy.frontier_quantile)
    if passed is None or newer is None:
        return newer or passed
    return max(passed, newer, key=lambda cell: cell.min_event_time)


def band_of(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> Band:
    """Publish times `[min(base, tracking - band), tracking]`, reaching back at least to the anchor: the newest publish
    time before `tracking - band` of a message with an event time, as closely as the histogram knows it."""
    start = min(base, tracking - policy.band)
    anchor_us = histogram.newest_valid_before(to_us(tracking - policy.band))
    anchor = None if anchor_us is None else from_us(anchor_us)
    if policy.anchor and anchor is not None:
        start = min(start, anchor)
    return Band(start=start, end=tracking, anchor=anchor)


def recent_lag(histogram: Histogram, at_most: timedelta) -> timedelta:
    """The largest `publish time - event time` in the newest bucket that holds a message with an event time, at most
    two seconds more than it is, and kept within zero and `at_most`."""
    newest = histogram.newest_valid_bucket(before=AFTER_ALL)
    lag_us = 0 if newest is None else histogram.greatest_lag_us(newest)
    return min(max(timedelta(microseconds=lag_us), ZERO), at_most)


def reachable_from(histogram: Histogram, base: datetime, tracking: datetime, policy: Policy) -> int:
    """The first publish-time bucket that this band or a later one of the same epoch can reach: what is below may
    be pruned. The anchor is never below it."""
    band = band_of(histogram, base - policy.base_slack, tracking - policy.reading_slack, replace(policy, anchor=True))
    return bucket_of(band.start)


@dataclass(frozen=True, slots=True)
class _Held:
    """What every decision carries, whatever it decides."""

    at: datetime
    previous: Decision | None
    base: EffectiveReading | None
    tracking: EffectiveReading | None
    complete_from: datetime
    histogram: Histogram
    released_before: datetime | None = None

    def because(self, reason: Reason) -> Decision:
        """The watermark stays where it is."""
        newest = self.histogram.newest_publish_us
        return Decision(
            at=self.at,
            watermark=None if self.previous is None else self.previous.watermark,
            reason=reason,
            base=self.base,
            tracking=self.tracking,
            newest_publish_time=None if newest is None else from_us(newest),
            complete_from=self.complete_from,
            released_before=self.released_before,
        )

    def decided(self, candidate: datetime, moved: Reason, unmoved: Reason) -> Decision:
        """The watermark moves to the candidate if that is above it, and never back."""
        decision = self.because(unmoved)
        if decision.watermark is None or candidate > decision.watermark:
            decision = replace(decision, watermark=candidate, reason=moved)
        return replace(decision, candidate=candidate)


def _least(histogram: Histogram, start: datetime, high: int, policy: Policy) -> tuple[Cell | None, int]:
    """The cell of the least event time published from `start` on, up to the bucket `high`, and how many messages were.

    With a quantile, the whole bucket of `start` counts, because of a part of a bucket the quantile is another.
    """
    if policy.quantile > 0:
        low = bucket_of(start)
        positions = histogram.since(low * BUCKET_US, high)
        return histogram.quantile_between(low, high, policy.quantile), histogram.messages_at(positions)
    positions = histogram.since(to_us(start), high)
    return histogram.minimum_at(positions), histogram.messages_at(positions)


def is_stale(reading: EffectiveReading, at: datetime, policy: Policy) -> bool:
    """Whether the newest observation is older than `max_reading_age`."""
    return at - reading.newest.observed_at > policy.max_reading_age


def was_sought(reading: EffectiveReading, before: EffectiveReading | None) -> bool:
    """Whether the reading is of a later epoch than at the decision before."""
    return before is not None and reading.epoch > before.epoch


def has_no_backlog(reading: EffectiveReading, policy: Policy) -> bool:
    """Whether the reading is within `near_real_time` of the moment at which it was observed."""
    return reading.observed_at - reading.oldest_unacked <= policy.near_real_time


def is_idle(histogram: Histogram, base: EffectiveReading, tracking: EffectiveReading, policy: Policy) -> bool:
    """Nothing valid was published for `idle_timeout`, all that was has landed, and neither subscription has a backlog.

    Rejected messages do not count: a source that sends nothing but broken ones would pin everybody else. That base had
    no backlog when it was read is not enough: it may have held the last messages, for as long as nothing newer is
    read, and these may lag further behind than the very last one.
    """
    if histogram.newest_publish_us is None:
        return False
    newest = from_us(histogram.newest_publish_us)
    if base.oldest_unacked - policy.base_slack <= newest or tracking.observed_at - newest <= policy.idle_timeout:
        return False
    return has_no_backlog(base, policy) and has_no_backlog(tracking, policy)


def _end_of_hole(
    histogram: Histogram,
    base: EffectiveReading,
    oldest_tracking: datetime,
    base_slack: timedelta,
    pruned_before: int | None,
) -> datetime | None:
    """If base holds a message that tracking should have seen and has not: from where on tracking knows again.

    A message that became visible after its publish time may be read only when nothing was outstanding shortly before:
    then the newest reading names it, from within the slack below the effective one.
    """
    is_within_slack = base.oldest_unacked - base.newest.oldest_unacked <= base_slack
    named: Reading | EffectiveReading = base.newest if is_within_slack else base
    if not named.names_a_message or named.oldest_unacked >= oldest_tracking:
        return None
    bucket = bucket_of(named.oldest_unacked)
    if histogram.is_occupied(bucket) or (pruned_before is not None and bucket < pruned_before):
        return None
    following = histogram.next_occupied(bucket)
    known_again = oldest_tracking if following is None else bucket_start(following)
    return min(known_again, oldest_tracking)
