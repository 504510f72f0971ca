"""The input of one decision. Slack is subtracted from readings here and nowhere else."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Cell, Histogram, holding
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading

CLOCKS_AGREE = timedelta(milliseconds=100)
"""Two measurements of a clock's error agree if they differ by at most this, plus the duration of their requests."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one decision depends on.

    `histogram` holds every message that is acknowledged on tracking with `publish time >= complete_from`, except the
    buckets below `pruned_before`, whose frontier is `pruned_frontier`. `base` and `tracking` are the effective
    readings. Tracking is read only after its acknowledged messages were persisted. `previous` is the last decision of
    the same log, `watermark` the highest known watermark. `released_before` is the time of an operator's release.
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
    """The part of the histogram that holds the watermark. Computed once, because several rules use it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holding", holding(self.histogram, self.policy.max_lag))

    @property
    def base_after_slack(self) -> datetime:
        """Base's reading minus `base_slack`. Assumption: rule 1 has passed, so both readings exist. Most other
        properties assume this too."""
        return base_after_slack(known(self.base), self.policy)

    @property
    def oldest_base(self) -> datetime:
        """B: every message that holds the watermark and is still to land was published at this moment or later. B is
        base's reading after slack, or the time of a release that base has not passed."""
        return self.release or self.base_after_slack

    @property
    def oldest_tracking(self) -> datetime:
        """T: every message published before this moment is in the histogram. T is tracking's reading after slack."""
        return tracking_after_slack(known(self.tracking), self.policy)

    @property
    def release(self) -> datetime | None:
        """The time of the operator's release; None once base has passed it."""
        before = self.released_before
        return before if before is not None and before > known(self.base).oldest_unacked else None

    @property
    def band_edge(self) -> datetime:
        """T - D: messages published before this moment are older than the band."""
        return self.oldest_tracking - self.policy.band

    @property
    def clock_ahead(self) -> timedelta | None:
        """The time by which this machine's clock is ahead of the server's; None if the readings do not show that it is.

        If the clock is ahead, both subscriptions trail it by the same time, at this decision and the previous one.
        Backlogs differ and change, but a clock error does not.
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
        """True if a reading was observed later than now, although the clock was not behind the server's at the time."""
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
    """True if the next observation is overdue by more than `max_reading_age`. If a reading is taken at each tick, the
    next one is due at once."""
    return at - reading.next_by > policy.max_reading_age


def was_sought(reading: EffectiveReading | None, before: EffectiveReading | None) -> bool:
    """True if the reading is of a later epoch than `before`, the reading of the previous decision."""
    return reading is not None and before is not None and reading.epoch > before.epoch


def has_no_backlog(reading: EffectiveReading, policy: Policy, beyond: timedelta = timedelta(0)) -> bool:
    """True if the oldest outstanding message was at most `near_real_time` plus `beyond` old when it was observed."""
    return reading.observed_at - reading.oldest_unacked <= policy.near_real_time + beyond


def known(reading: EffectiveReading | None) -> EffectiveReading:
    """Return the reading, which rule 1 has found to exist. Raises ValueError for None."""
    if reading is None:
        raise ValueError("the rules after the first need a reading of both subscriptions")
    return reading
