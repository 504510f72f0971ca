"""The policy: every parameter of a decision, as opposed to what was observed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    `rule` selects what bounds the event times of messages that may still land: the least event time in the band, or the
    frontier. `band` is the disorder that is allowed for. In each publish second, `quantile` passes over that share of
    the least event times, to tolerate slow clocks. `reading_slack` is subtracted from the tracking reading and
    `base_slack` from the base reading, because the service may show a message a moment after its publish time.

    The next four are not settings, but the simulation varies them. A subscription whose oldest message was published
    within `near_real_time` of its reading counts as having no backlog: tracking is that far behind between two rounds
    of 5 s. In a silence, the sources' recent lag holds the watermark back by at most `max_idle_lag`, as a guard against
    a broken clock in the last second. A reading that is overdue by more than `max_reading_age` holds the watermark, so
    that an outage of the readings is reported. A reading that falls by more than `seek_tolerance` is a seek; a
    smaller fall is not, because the service may step back by seconds.

    A message that is published more than `max_lag` after its event does not hold the watermark; without a `max_lag`,
    every message does. For as long as `undecided`, tracking may hold messages that it cannot judge yet without counting
    as behind.
    """

    rule: Literal["band", "frontier"] = "band"
    band: timedelta = timedelta(seconds=10)
    near_real_time: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(minutes=2)
    idle: Literal["advance", "hold"] = "advance"
    max_idle_lag: timedelta = timedelta(minutes=5)
    max_reading_age: timedelta = timedelta(minutes=5)
    seek_tolerance: timedelta = timedelta(seconds=30)
    quantile: float = 0.0
    reading_slack: timedelta = timedelta(0)
    base_slack: timedelta = timedelta(0)
    max_lag: timedelta | None = None
    undecided: timedelta = timedelta(0)
