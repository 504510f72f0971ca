"""Converts windows to Dagster partitions, and to the strings in a run's config and tag, such as `first..last` for a
range of windows. A partition is an hour of windows, or a single window of an hour or longer.

Dagster lists only the partitions of recent years. The lake and the requests for runs use windows, not partitions.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from tidemark.pipeline.lake.tables.heartbeats import HOUR
from tidemark.pipeline.orchestrator.names import TO, WINDOWS
from tidemark.pipeline.windows import KEY_FORMAT, WINDOWS_PER_RUN, Window, Windowing, runs_of_neighbours

YEARS_BEFORE = 1
"""Number of full years before the current year whose partitions Dagster lists."""


@dataclass(frozen=True)
class Partitions:
    """The partitions of an asset. `windowing` divides event time into the asset's windows. `loaded_at` is the time at
    which Dagster loaded the definitions."""

    windowing: Windowing
    loaded_at: datetime

    @property
    def listed(self) -> Windowing:
        """The partitions that Dagster lists. Each partition is a window of this `Windowing`."""
        since = datetime(self.loaded_at.year - YEARS_BEFORE, 1, 1, tzinfo=UTC)
        longer = Windowing(max(self.windowing.length, HOUR), since)
        return Windowing(longer.length, longer.containing(max(since, self.windowing.first)).start)

    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """Define the partitions, in UTC. Dagster lists only partitions that have ended."""
        listed = self.listed
        hours = listed.length // HOUR  # divides a day
        cron = "0 0 * * *" if hours == 24 else f"0 */{hours} * * *"
        return dg.TimeWindowPartitionsDefinition(start=listed.first, cron_schedule=cron, fmt=KEY_FORMAT, timezone="UTC")

    def windows_in(self, keys: Iterable[str]) -> list[range]:
        """Return the window numbers of each partition, one range per key. Raises ValueError if a key is not the key of
        a partition."""
        named, number_of = map(self.listed.named, keys), self.windowing.number_of
        return [range(number_of(each.start), number_of(each.end)) for each in named]

    def holding(self, windows: Iterable[Window]) -> Mapping[str, list[Window]]:
        """Group windows by the partition that contains them, in order. Windows before the first partition that Dagster
        lists are left out."""
        listed, held = self.listed, defaultdict[str, list[Window]](list)
        for window in sorted(windows):
            if window.start >= listed.first:
                held[listed.containing(window.start).key].append(window)
        return held

    def beside(self, keys: Iterable[str]) -> list[str]:
        """Return the partitions just before the first of `keys` and just after the last: on each side, as many as
        a run of WINDOWS_PER_RUN windows can touch, but only listed ones. `keys` must be in order."""
        listed, numbers = self.listed, [self.listed.number_of(self.listed.named(key).start) for key in keys]
        most = WINDOWS_PER_RUN * self.windowing.length // listed.length + 1
        found = [number + step for number in numbers[:1] for step in range(-most, 0)]
        found += [number + step for number in numbers[-1:] for step in range(1, most + 1)]
        return [listed.numbered(number).key for number in found if number >= listed.number_of(listed.first)]


def stretch_texts(windows: Iterable[Window]) -> list[str]:
    """Format windows, which must be in order: a single window as its key, and a range of adjacent windows as
    `first..last`."""
    return [first if first == last else f"{first}{TO}{last}" for first, last in stretch_ends(windows)]


def stretch_ends(windows: Iterable[Window]) -> list[tuple[str, str]]:
    """Return the first and the last window key of each range of adjacent windows, in order."""
    return [(stretch[0].key, stretch[-1].key) for stretch in runs_of_neighbours(windows)]


def windows_tag(windows: Sequence[Window]) -> str:
    """Format ordered windows for a row of the UI: one window as its key, several as in `2026-11-21T05-20Z..06-10Z
    (11)`. That is the first key, the part of the last key that differs, and the number of windows. Gaps between windows
    are not shown."""
    first, last = windows[0].key, windows[-1].key
    if first == last:
        return first
    differs = next(at for at, signs in enumerate(zip(first, last, strict=True)) if len(set(signs)) == 2)
    begins = 1 + max(first.rfind(sign, 0, differs) for sign in "-T")
    return f"{first}{TO}{last[begins:]} ({len(windows)})"


def stretch_named(text: str, windowing: Windowing) -> range:
    """Parse a result of `windows_tag`, or one of the results of `stretch_texts`, into a range of window numbers. A tag
    does not show gaps between windows, so the range includes them. Raises ValueError for any other text."""
    first, _, last = text.partition(" ")[0].partition(TO)
    last = first[: max(0, len(first) - len(last))] + last
    numbers = [windowing.number_of(windowing.named(key).start) for key in (first, last)]
    if numbers[1] < numbers[0]:
        raise ValueError(f"{first}{TO}{last} ends before it begins: name the earlier window first")
    return range(numbers[0], numbers[1] + 1)


def stretches_asked(texts: Iterable[str], tags: Mapping[str, str], windowing: Windowing) -> list[range]:
    """Return the numbers of the windows that a run has to compute, as ranges: the windows in its config (`texts`) or,
    if there are none, in its tag. Raises ValueError if a text does not name windows."""
    in_tags = [tags[WINDOWS]] if WINDOWS in tags else []
    return [stretch_named(text, windowing) for text in list(texts) or in_tags]


def windows_of(stretches: Iterable[range], windowing: Windowing) -> list[Window]:
    """Return the windows with these numbers, without duplicates, in order."""
    return [windowing.numbered(number) for number in sorted({one for each in stretches for one in each})]
