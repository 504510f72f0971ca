"""How trust is earned: every number that a decision depends on, apart from what was observed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    `rule` says what bounds the event times of all that may still land: the least event time in the band, or the
    frontier. `band` is the disorder that is allowed for. `quantile` passes over that share of each publish-time
    bucket's least event times, `frontier_quantile` of its greatest, against clocks that run slow or fast.
    `reading_slack` and `base_slack` are taken off the tracking and the base reading, because the service may show a
    message a moment after its publish time. `anchor=False` exists to show what is lost without the anchor; nothing
    in production sets it.
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
    frontier_quantile: float = 0.0
    reading_slack: timedelta = timedelta(0)
    base_slack: timedelta = timedelta(0)
    anchor: bool = True
