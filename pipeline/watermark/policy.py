"""The policy: every number that a decision depends on, apart from what was observed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """The estimator's settings.

    `rule` says what bounds the event times of the messages that may still land: the least event time in the band, or
    the frontier. `band` is the disorder that is allowed for. In each publish second, `quantile` passes over that share
    of the least event times, against clocks that run slow, and `frontier_quantile` over that share of the greatest.
    `reading_slack` is subtracted from the tracking reading and `base_slack` from the base reading, because the service
    may show a message a moment after its publish time.

    No setting changes the next four, and the simulation varies them. A subscription whose oldest message was published
    within `near_real_time` of its reading counts as without a backlog: between two rounds of 5 s tracking is that far
    behind. In a silence the sources' recent lag holds the watermark back by `max_idle_lag` at most, against a broken
    clock in the last second. A reading that is overdue by more than `max_reading_age` holds the watermark: an outage of
    the readings is worth a word. One that falls by more than `seek_tolerance` is a seek: the service may step back by
    seconds. Nor is `frontier_quantile` a setting, as fast clocks count with their publish times.

    A message that is published more than `max_lag` after its event
    does not hold the watermark; without one, every message does. For as long as `undecided`, tracking may hold messages
    that it cannot judge yet, and does not count as behind.
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
    max_lag: timedelta | None = None
    undecided: timedelta = timedelta(0)
