"""What ticks and rounds asked of Pub/Sub. The log notes it, and its fold sums it by hour, for a day.

It decides no watermark. It is in the log so that the account of a day survives a restart.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.sums import Sums

HOUR_US = 3_600_000_000
HOURS = 24
"""The hours of a day that are kept. With the one under way, the account covers 23 to 24 hours."""


@dataclass(frozen=True, slots=True)
class Usage(Sums):
    """What one process asked for in so many `seconds`; those of rounds are none, since ticks run beside them.

    `snapshots` were taken for readings, and kept messages of about `snapshot_bytes`. `pulls` are calls; they brought
    `tracked` messages of `tracked_bytes` on tracking and `landed` ones of `landed_bytes` on base. The pulls of a drain
    are not among them.
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
    """The usage of the last day by hour, numbered since the epoch, in order."""

    hours: tuple[tuple[int, Usage], ...] = field(default=())

    def after(self, at: datetime, usage: Usage | None) -> "Account":
        """With what was noted at that moment."""
        if usage is None:
            return self
        hour = to_us(at) // HOUR_US
        sums = dict(self.hours)
        sums[hour] = sums.get(hour, Usage()) + usage
        newest = max(sums)
        return Account(tuple(sorted((one, summed) for one, summed in sums.items() if one > newest - HOURS)))

    def last_day(self, at: datetime) -> Usage:
        """The sum of the last day's hours, as far as they are known, the hour of `at` included."""
        hour = to_us(at) // HOUR_US
        return sum((usage for one, usage in self.hours if one > hour - HOURS), Usage())

    @property
    def known(self) -> Usage:
        """The sum of all that is kept: the newest day with decisions, however long ago that was."""
        return sum((usage for _, usage in self.hours), Usage())
