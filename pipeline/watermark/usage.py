"""Counts of the requests that tidemark makes to Pub/Sub. The tracking log records them, and its state sums them by
hour, for a day.

The counts affect no decision. They are in the log so that the sums survive a restart.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tidemark.pipeline.clock import HOUR_US, to_us
from tidemark.pipeline.figures import Sums

HOURS = 24
"""Number of hours in an Account, including the current hour, which is incomplete."""


@dataclass(frozen=True, slots=True)
class Usage(Sums):
    """The requests of one process to Pub/Sub within `seconds`. For a reader on Spark, `seconds` is 0, because
    ticks run at the same time, and their usage already counts these seconds.

    - `snapshots` is the number of snapshots taken to read backlogs. They retained about `snapshot_bytes` of messages.
    - `pulls` is the number of pull requests.
    - `tracked` is the number of messages pulled from tracking, and `tracked_bytes` their size.
    - `landed` is the number of messages pulled from base, and `landed_bytes` their size.
    - `ticks` is the number of decisions.
    """

    seconds: float = 0.0
    snapshots: int = 0
    snapshot_bytes: int = 0
    pulls: int = 0
    tracked: int = 0
    tracked_bytes: int = 0
    landed: int = 0
    landed_bytes: int = 0
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """The usage of the last day: pairs of an hour and its usage, in order. Hours are numbered from the epoch."""

    hours: tuple[tuple[int, Usage], ...] = field(default=())

    def after(self, at: datetime, usage: Usage | None) -> "Account":
        """Return the account with `usage` added to the hour of `at`."""
        if usage is None:
            return self
        hour = to_us(at) // HOUR_US
        sums = dict(self.hours)
        sums[hour] = sums.get(hour, Usage()) + usage
        kept = sorted(each for each in sums.items() if each[0] > hour - HOURS)
        return Account(tuple(kept[: 2 * HOURS]))  # a wrong clock may have counted hours after `at`

    def last_day(self, at: datetime) -> Usage:
        """Return the sum over the hour of `at` and 23 hours on either side. Later hours come from a wrong clock."""
        hour = to_us(at) // HOUR_US
        return sum((usage for one, usage in self.hours if abs(one - hour) < HOURS), Usage())

    @property
    def known(self) -> Usage:
        """The total usage of all kept hours, however old they are."""
        return sum((usage for _, usage in self.hours), Usage())
