"""Windows as Dagster's partitions: an hour of windows is one, and a window of an hour or longer is one of its own.

Dagster lists those of the last years alone. Partitions are its view: the lake has windows, and a run is asked for
windows.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from tidemark.pipeline.lake.tables.heartbeats import HOUR
from tidemark.pipeline.windows import KEY_FORMAT, Window, Windowing

YEARS_BEFORE = 1
"""Whole years before this one that Dagster lists."""


@dataclass(frozen=True)
class Partitions:
    """The partitions of an asset with these windows, as of `loaded_at`, when Dagster loaded the definitions.

    `listed` cuts event time into partitions, from the first that Dagster lists on.
    """

    windowing: Windowing
    loaded_at: datetime

    @property
    def listed(self) -> Windowing:
        """The cut of event time into partitions."""
        since = datetime(self.loaded_at.year - YEARS_BEFORE, 1, 1, tzinfo=UTC)
        longer = Windowing(max(self.windowing.length, HOUR), since)
        return Windowing(longer.length, longer.containing(max(since, self.windowing.first)).start)

    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """The partitions for Dagster, in UTC, of which it lists those that have ended."""
        listed = self.listed
        return dg.TimeWindowPartitionsDefinition(
            start=listed.first, cron_schedule=cron_of(listed.length), fmt=KEY_FORMAT, timezone="UTC"
        )

    def windows_in(self, keys: Iterable[str]) -> list[range]:
        """The numbers of the windows of these partitions. Raises ValueError for a key that names none."""
        named, number_of = map(self.listed.named, keys), self.windowing.number_of
        return [range(number_of(each.start), number_of(each.end)) for each in named]

    def holding(self, windows: Iterable[Window]) -> Mapping[str, list[Window]]:
        """The listed partitions that hold these windows, each with its own, in order."""
        listed, held = self.listed, defaultdict[str, list[Window]](list)
        for window in sorted(windows):
            if window.start >= listed.first:
                held[listed.containing(window.start).key].append(window)
        return held


def cron_of(length: timedelta) -> str:
    """The cron schedule whose ticks are the partitions' starts. `length` is hours, and divides a day."""
    return "0 0 * * *" if length == timedelta(days=1) else f"0 */{length // HOUR} * * *"
