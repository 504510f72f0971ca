"""How trust is earned: every number that a decision depends on, apart from what was observed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    `band` is the disorder that is allowed for. `reading_slack` and `base_slack` are taken off the tracking and
    the base reading, because the service may show a message a moment after its publish time. `anchor=False`
    exists to show what is lost without the anchor; nothing in production sets it.
    """

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
    anchor: bool = True
