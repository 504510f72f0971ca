"""The policy: all parameters of a decision, as opposed to observed values."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    `rule` selects the bound on the event times of messages that may still land: the least event time in the band, or
    the frontier. `band` is the disorder that is allowed for. `quantile` is the share of least event times that is
    passed over in each publish second, to tolerate slow clocks. `reading_slack` is subtracted from the tracking reading
    and `base_slack` from the base reading, because the service may show a message a moment after its publish time.

    Four parameters are not settings, but the simulation varies them. A subscription has no backlog if its oldest
    message was published within `near_real_time` of its reading: between two rounds of 5 s, tracking may be that far
    behind. In a silence, the sources' recent lag holds the watermark back by at most `max_idle_lag`, in case the last
    second had a broken clock. If a reading is overdue by more than `max_reading_age`, the watermark is held, so that
    the outage is reported. A reading that falls by more than `seek_tolerance` means a seek. A smaller fall does not,
    because the service may step back by seconds.

    A message that is published more than `max_lag` after its event does not hold the watermark; without a `max_lag`,
    every message does. Tracking does not count as behind if it keeps messages that it cannot judge yet for at most
    `undecided`.
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
