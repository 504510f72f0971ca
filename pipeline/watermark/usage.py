"""Counts of the requests that ticks and rounds make to Pub/Sub. The log records them, and its fold sums them by hour,
for a day.

They affect no decision. They are in the log so that the sums of the last day survive a restart.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.figures import Sums

HOUR_US = 3_600_000_000
HOURS = 24
"""The number of hours that are kept, including the current one. So an account covers 23 to 24 hours."""


@dataclass(frozen=True, slots=True)
class Usage(Sums):
    """The requests of one process to Pub/Sub within `seconds`. Rounds on Spark add no seconds, because ticks run at the
    same time and add theirs.

    `snapshots` is the number of snapshots taken for readings; they retained about `snapshot_bytes` of messages. `pulls`
    is the number of pull calls; they returned `tracked` messages with `tracked_bytes` on tracking, and `landed`
    messages with `landed_bytes` on base. The pulls of a drain are not counted.
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
    """The usage of the last day as pairs of hour and usage, in order. Hours are numbered from the epoch."""

    hours: tuple[tuple[int, Usage], ...] = field(default=())

    def after(self, at: datetime, usage: Usage | None) -> "Account":
        """Add the usage noted at a moment."""
        if usage is None:
            return self
        hour = to_us(at) // HOUR_US
        sums = dict(self.hours)
        sums[hour] = sums.get(hour, Usage()) + usage
        newest = max(sums)
        return Account(tuple(sorted((one, summed) for one, summed in sums.items() if one > newest - HOURS)))

    def last_day(self, at: datetime) -> Usage:
        """Sum the last day's known hours, the hour of `at` included."""
        hour = to_us(at) // HOUR_US
        return sum((usage for one, usage in self.hours if one > hour - HOURS), Usage())

    @property
    def known(self) -> Usage:
        """The sum of all kept hours. They are the newest day with usage, even if it is long ago."""
        return sum((usage for _, usage in self.hours), Usage())
