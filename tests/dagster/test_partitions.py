"""Windows as Dagster's partitions: hours, or longer windows, of the last years."""

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.settings_sections import LENGTHS
from tidemark.pipeline.windows import Windowing

LOADED = datetime(2036, 11, 25, 4, 50, tzinfo=UTC)
TEN_YEARS = datetime(2026, 11, 25, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("length", LENGTHS, ids=format_duration)
def test_partitions_hold_every_listed_window_once(length: timedelta) -> None:
    partitions = Partitions(Windowing(length, TEN_YEARS), LOADED)
    definition, windowing = partitions.definition(), partitions.windowing
    keys = definition.get_partition_keys(current_time=datetime(2035, 1, 3, tzinfo=UTC))
    assert (keys[0], len(keys)) == ("2035-01-01T00-00Z", timedelta(days=2) / max(HOUR, length))
    windows = list(windowing.between(datetime(2035, 1, 1, tzinfo=UTC), datetime(2035, 1, 3, tzinfo=UTC)))
    held = partitions.holding(reversed(windows))
    assert list(held) == keys
    assert [window for each in held.values() for window in each] == windows
    for key, its in held.items():
        bounds = definition.time_window_for_partition_key(key)
        assert (bounds.start, bounds.end) == (its[0].start, its[-1].end)
        (numbers,) = partitions.windows_in([key])
        assert [windowing.numbered(number) for number in numbers] == its


@pytest.mark.parametrize("length", [LENGTHS[0], HOUR, LENGTHS[-1]], ids=format_duration)
def test_however_many_years_the_lake_has_dagster_lists_two_at_most(length: timedelta) -> None:
    partitions = Partitions(Windowing(length, datetime(1990, 1, 1, tzinfo=UTC)), LOADED)
    definition = partitions.definition()
    assert len(definition.get_partition_keys(current_time=datetime(2036, 12, 31, 23, 59, tzinfo=UTC))) <= 17_544
    assert partitions.holding([Windowing(length, TEN_YEARS).containing(TEN_YEARS)]) == {}, "it is not listed"
