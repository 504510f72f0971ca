"""What the code server serves: lineage, what each asset tells about itself, partitions, sensors."""

import runpy
from datetime import timedelta

import dagster as dg
import pytest

import tidemark.assets.definitions
import tidemark.assets.location
from tidemark.assets.catalog import (
    BASE_SUBSCRIPTION,
    HEARTBEAT_DIFFS,
    HEARTBEATS,
    QUARANTINED,
    STREAM_STATUS,
    TOPIC,
    TRACKING_HISTOGRAM,
    TRACKING_SUBSCRIPTION,
    WATERMARK,
)
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.tuning import WATERMARK_TUNING
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS
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


def test_the_definitions_are_valid(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)
    dg.Definitions.validate_loadable(tidemark.assets.location.defs)
    assert definitions.resolve_job_def(COMPUTE_WINDOWS).name == COMPUTE_WINDOWS


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


@pytest.fixture(scope="module")
def specs(definitions: dg.Definitions) -> dict[dg.AssetKey, dg.AssetSpec]:
    return {spec.key: spec for spec in definitions.resolve_all_asset_specs()}


def test_lineage_begins_with_the_topic_and_its_two_subscriptions(specs: dict[dg.AssetKey, dg.AssetSpec]) -> None:
    lineage = {key: {dep.asset_key for dep in spec.deps} for key, spec in specs.items()}
    assert lineage == {
        TOPIC: set(),
        BASE_SUBSCRIPTION: {TOPIC},
        TRACKING_SUBSCRIPTION: {TOPIC},
        TRACKING_HISTOGRAM: {TRACKING_SUBSCRIPTION},
        WATERMARK: {TRACKING_HISTOGRAM, BASE_SUBSCRIPTION},
        HEARTBEATS: {BASE_SUBSCRIPTION},
        QUARANTINED: {BASE_SUBSCRIPTION},
        HEARTBEAT_DIFFS: {HEARTBEATS, WATERMARK},
        STREAM_STATUS: {HEARTBEAT_DIFFS},
        WATERMARK_TUNING: {HEARTBEATS, WATERMARK},
    }
