"""The input of one decision, with the slack subtracted from the readings."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Cell, Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading

CLOCKS_AGREE = timedelta(milliseconds=100)
"""Tolerance within which readings agree on this machine's clock error. Each reading gives a lower and an upper bound of
the error. The greatest lower bound may exceed the least upper bound by this much."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one decision depends on.

    `histogram` contains every message published at `complete_from` or later that is acknowledged on tracking. Its
    buckets below `pruned_before` were dropped; their frontier is `pruned_frontier`. `base` and `tracking` are the
    effective readings. Tracking is read only after its acknowledged messages were persisted. `previous` is the last
    decision of the same log, `watermark` the highest known watermark. `released_before`: an operator released the
    messages published before this time.
    """

    histogram: Histogram
    base: EffectiveReading | None
    tracking: EffectiveReading | None
    policy: Policy
    at: datetime
    complete_from: datetime
    watermark: datetime | None = None
    previous: Decision | None = None
    pruned_before: int | None = None
    pruned_frontier: Cell | None = None
    released_before: datetime | None = None
    holding: Histogram = field(init=False, repr=False, compare=False)
    """The part of `histogram` that holds back the watermark: without messages that lag more than `max_lag`. Computed
    once, because several rules use it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holding", self.histogram.holding(self.policy.max_lag))

    @property
    def base_after_slack(self) -> datetime:
        """Base's reading minus `base_slack`. Raises ValueError if base was never read; rule 1 excludes this."""
        return base_after_slack(known(self.base), self.policy)

    @property
    def oldest_base(self) -> datetime:
        """B: base has acknowledged every message published before this moment, apart from released messages. B is the
        moment `release`, if there is one; otherwise it is base's reading minus the slack."""
        return self.release or self.base_after_slack

    @property
    def base_as_read(self) -> datetime:
        """Like `oldest_base`, but without slack: `release` if there is one, otherwise base's reading as is."""
        return self.release or known(self.base).oldest_unacked

    @property
    def oldest_tracking(self) -> datetime:
        """T: tracking's reading after slack. The histogram has all messages published in [`complete_from`, T)."""
        return tracking_after_slack(known(self.tracking), self.policy)

    @property
    def release(self) -> datetime | None:
        """The publish time before which an operator released messages; None without one, or once base has passed it."""
        before = self.released_before
        return before if before is not None and before > known(self.base).oldest_unacked else None

    @property
    def band_edge(self) -> datetime:
        """T - D: messages published before this moment are older than the band."""
        return self.oldest_tracking - self.policy.band

    @property
    def clock_ahead(self) -> timedelta | None:
        """Time by which this machine's clock is ahead of the server's; None if the readings do not show it.

        The clock counts as ahead if four readings are behind it by about the same time: the newest readings of both
        subscriptions, in this decision and in the previous one. Real backlogs would differ and change.
        """
        before = self.previous
        effective = (self.base, self.tracking) + ((before.base, before.tracking) if before else ())
        readings = {one.newest for one in effective if one is not None and one.newest.answered_at is not None}
        if len(readings) < 4:
            return None
        at_least = max(one.observed_at - one.oldest_unacked for one in readings)
        at_most = min((one.answered_at or one.observed_at) - one.oldest_unacked for one in readings)
        return at_least if at_least <= at_most + CLOCKS_AGREE else None

    @property
    def clock_went_back(self) -> bool:
        """True if this machine's clock was set back: at a reading, it showed a later time than now, and was not behind
        the server's clock."""
        both = (self.base, self.tracking)
        newest = [one.newest for one in both if one is not None and one.newest.answered_at is not None]
        latest = self.at + self.policy.near_real_time
        return any(one.observed_at > latest and not one.clock_is_behind_by for one in newest)


def base_after_slack(base: EffectiveReading, policy: Policy) -> datetime:
    """Return base's reading minus `base_slack`."""
    return base.oldest_unacked - policy.base_slack


def tracking_after_slack(tracking: EffectiveReading, policy: Policy) -> datetime:
    """Return tracking's reading minus `reading_slack`."""
    return tracking.oldest_unacked - policy.reading_slack


def is_stale(reading: EffectiveReading, at: datetime, policy: Policy) -> bool:
    """Return True if the next reading is overdue by more than `max_reading_age`. If there is a reading at each tick,
    the next one is due immediately."""
    return at - reading.next_by > policy.max_reading_age


def was_sought(reading: EffectiveReading | None, before: EffectiveReading | None) -> bool:
    """Return True if the subscription was sought back after `before`, the reading of the previous decision."""
    return reading is not None and before is not None and reading.epoch > before.epoch


def has_no_backlog(reading: EffectiveReading, near: timedelta) -> bool:
    """Return True if the oldest unacknowledged message was at most `near` old when the backlog was read."""
    return reading.observed_at - reading.oldest_unacked <= near


def known(reading: EffectiveReading | None) -> EffectiveReading:
    """Return the reading, which exists if rule 1 has passed. Raises ValueError for None."""
    if reading is None:
        raise ValueError("all rules except the first need a reading of each subscription")
    return reading
