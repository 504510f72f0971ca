"""What the code server serves: lineage, what each asset tells about itself, partitions, sensors."""

import runpy
from datetime import timedelta

import dagster as dg
import pytest

import tidemark.assets.definitions
import tidemark.assets.location
from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS
from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import WatermarkSettings

FIELDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT}


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions(
        Settings(message=MessageSettings(fields=FIELDS), watermark=WatermarkSettings(tick=timedelta(seconds=25)))
    )


def test_importing_what_builds_them_reads_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_BAND", "of a project that is not ours")
    runpy.run_path(str(tidemark.assets.definitions.__file__))
    with pytest.raises(InvalidSettings, match="TIDEMARK_BAND"):
        runpy.run_path(str(tidemark.assets.location.__file__))


@pytest.mark.parametrize("name", ["tracking", "landing"])
def test_sensors_start_switched_on_and_tick_as_the_settings_say(definitions: dg.Definitions, name: str) -> None:
    sensor = definitions.resolve_sensor_def(name)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 21  # a look of Dagster's daemon before the tick is due
    assert "Every 25s" in (sensor.description or "")


def test_no_check_is_defined_that_cannot_be_due_nor_runs_with_an_hour_of_the_ui(definitions: dg.Definitions) -> None:
    plain = build_definitions(Settings())
    checks = {
        when: {(key.asset_key, key.name) for key in each.get_repository_def().asset_graph.asset_check_keys}
        for when, each in (("no fields", plain), ("fields", definitions))
    }
    assert checks["fields"] - checks["no fields"] == {(HEARTBEATS, "fields_present")}
    assert (HEARTBEATS, "missed") in checks["no fields"]
    assert {name for asset, name in checks["fields"] if asset == HEARTBEAT_DIFFS or name == "passed_over"} == set()
    lagging = build_definitions(Settings(watermark=WatermarkSettings(max_lag=timedelta(hours=1))))
    assert dg.AssetCheckKey(HEARTBEATS, "passed_over") in lagging.get_repository_def().asset_graph.asset_check_keys


def test_lineage_begins_with_the_topic_and_its_two_subscriptions(definitions: dg.Definitions) -> None:
    specs = definitions.resolve_all_asset_specs()
    edges = {f"{dep.asset_key.to_user_string()} > {spec.key.to_user_string()}" for spec in specs for dep in spec.deps}
    assert edges == {
        *("topic > base_subscription", "topic > tracking_subscription", "tracking_subscription > tracking_histogram"),
        *("tracking_histogram > watermark", "base_subscription > watermark", "base_subscription > heartbeats"),
        *("base_subscription > quarantine", "heartbeats > heartbeat_diffs", "watermark > heartbeat_diffs"),
        *("heartbeat_diffs > stream_status", "heartbeats > watermark_tuning", "watermark > watermark_tuning"),
    }
