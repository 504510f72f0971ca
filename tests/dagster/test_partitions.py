"""Windows as Dagster's partitions: hours, or longer windows, of the last years."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

from tidemark.assets.catalog import HEARTBEAT_DIFFS
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


def test_when_the_list_begins_a_year_later_what_is_known_of_the_rest_stays() -> None:
    windowing = Windowing(timedelta(minutes=1), datetime(2020, 1, 1, tzinfo=UTC))
    before, after = (Partitions(windowing, LOADED.replace(year=year)).definition() for year in (2025, 2026))
    keys = ["2024-06-01T00-00Z", "2025-06-01T00-00Z", "2025-06-01T01-00Z"]
    with dg.DagsterInstance.ephemeral() as instance:

        def known(definition: dg.PartitionsDefinition) -> set[str]:  # type: ignore[type-arg]
            """What the asset's page shows as materialized."""
            found = get_and_update_asset_status_cache_value(instance, HEARTBEAT_DIFFS, definition)
            assert found is not None
            return set(found.deserialize_materialized_partition_subsets(definition).get_partition_keys())

        for key in keys:
            instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEAT_DIFFS, partition=key))
        assert known(before) == set(keys)
        assert known(after) == set(keys[1:])
