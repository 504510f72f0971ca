"""An asset of a user's own, downstream of the windows."""

from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.house import settings_of
from tests.watermark.builders import seconds
from tidemark.assets.catalog import HEARTBEAT_DIFFS, ON_COMPUTED, partitions_of
from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.windows import Window

NOW = SystemClock().now()


@pytest.fixture
def windows(tmp_path: Path) -> list[Window]:
    """Closed ones, the newest of which is older than those that have begun since."""
    windowing = settings_of(PubSubSettings(), tmp_path).windowing
    return list(windowing.between(NOW - seconds(600), NOW - seconds(120)))


@pytest.mark.parametrize(("condition", "fires"), [(ON_COMPUTED, True), (dg.AutomationCondition.eager(), False)])
def test_its_partition_is_requested_when_the_window_is_computed_and_when_it_is_computed_again(
    tmp_path: Path, windows: list[Window], condition: dg.AutomationCondition[dg.AssetKey], fires: bool
) -> None:
    settings = settings_of(PubSubSettings(), tmp_path)

    @dg.asset(deps=[HEARTBEAT_DIFFS], partitions_def=partitions_of(settings.windowing), automation_condition=condition)
    def anomalies() -> None: ...

    definitions = dg.Definitions.merge(build_definitions(settings), dg.Definitions(assets=[anomalies]))
    with dg.DagsterInstance.ephemeral() as instance:
        cursor = None
        for _ in range(2):
            quiet = dg.evaluate_automation_conditions(definitions, instance, evaluation_time=NOW, cursor=cursor)
            assert quiet.total_requested == 0
            instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEAT_DIFFS, partition=windows[3].key))
            asked = dg.evaluate_automation_conditions(definitions, instance, evaluation_time=NOW, cursor=quiet.cursor)
            assert asked.get_requested_partitions(anomalies.key) == ({windows[3].key} if fires else set())
            instance.report_runless_asset_event(dg.AssetMaterialization(anomalies.key, partition=windows[3].key))
            cursor = asked.cursor
