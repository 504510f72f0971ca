"""Windows as Dagster partitions: a partition is an hour of windows, or a single window of an hour or longer.

Dagster lists only the partitions of recent years. Partitions exist in Dagster only: the lake and the requests for runs
use windows.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from tidemark.pipeline.lake.tables.heartbeats import HOUR
from tidemark.pipeline.windows import KEY_FORMAT, Window, Windowing

YEARS_BEFORE = 1
"""Full years before the current one that Dagster lists."""


@dataclass(frozen=True)
class Partitions:
    """The partitions of an asset with these windows, as of `loaded_at`, when Dagster loaded the definitions."""

    windowing: Windowing
    loaded_at: datetime

    @property
    def listed(self) -> Windowing:
        """Event time divided into partitions, from the first that Dagster lists."""
        since = datetime(self.loaded_at.year - YEARS_BEFORE, 1, 1, tzinfo=UTC)
        longer = Windowing(max(self.windowing.length, HOUR), since)
        return Windowing(longer.length, longer.containing(max(since, self.windowing.first)).start)

    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """Define the partitions, in UTC. Dagster lists those that have ended."""
        listed = self.listed
        return dg.TimeWindowPartitionsDefinition(
            start=listed.first, cron_schedule=cron_of(listed.length), fmt=KEY_FORMAT, timezone="UTC"
        )

    def windows_in(self, keys: Iterable[str]) -> list[range]:
        """Return the numbers of the windows of each partition. Raises ValueError if a key names no partition."""
        named, number_of = map(self.listed.named, keys), self.windowing.number_of
        return [range(number_of(each.start), number_of(each.end)) for each in named]

    def holding(self, windows: Iterable[Window]) -> Mapping[str, list[Window]]:
        """Group windows by the listed partition that holds them, in order. Windows before the first listed partition
        are left out."""
        listed, held = self.listed, defaultdict[str, list[Window]](list)
        for window in sorted(windows):
            if window.start >= listed.first:
                held[listed.containing(window.start).key].append(window)
        return held


def cron_of(length: timedelta) -> str:
    """Return the cron schedule whose ticks are the partitions' starts. `length` is a number of hours that divides a
    day."""
    return "0 0 * * *" if length == timedelta(days=1) else f"0 */{length // HOUR} * * *"
