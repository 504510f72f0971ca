"""What the code server serves: lineage, partitions, sensors; two pipelines and somebody else's definitions in one
project; and an asset of a user's own, downstream of the windows."""

import runpy
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_file
from dagster.components.testing import create_defs_folder_sandbox

import tidemark
import tidemark.assets.definitions
import tidemark.assets.location
import tidemark.dagster as td
from tests.dagster.house import settings_of
from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.orchestrator.names import PIPELINE, pipeline_tag
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import PubSubSettings, WatermarkSettings

ROOT = Path(__file__).resolve().parents[2]
TOML = """
[pubsub]
topic = "{topic}"
base_subscription = "{topic}-base"
tracking_subscription = "{topic}-tracking"

[lake]
uri = "file:{topic}-lake"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for topic in ("heartbeats", "orders"):
        (tmp_path / f"{topic}.toml").write_text(TOML.format(topic=topic))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mine() -> dg.Definitions:
    """A project whose names are those that tidemark has where it is alone."""

    @dg.asset
    def watermark() -> None: ...

    @dg.asset_check(asset=watermark)
    def late() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.op(required_resource_keys={"spark"})
    def look_and_compute_again() -> None: ...

    @dg.job
    def repair() -> None:
        look_and_compute_again()

    @dg.sensor(job=repair)
    def tracking() -> None: ...

    return dg.Definitions(
        assets=[watermark],
        asset_checks=[late],
        jobs=[repair],
        sensors=[tracking],
        resources={"spark": dg.ResourceDefinition.hardcoded_resource("mine"), "lake": 1, "pubsub": 2},
        executor=dg.multiprocess_executor,
    )


def test_two_pipelines_and_a_project_with_the_same_names_are_one_project(folder: Path) -> None:
    heartbeats, orders = td.pipeline("heartbeats.toml"), td.pipeline(folder / "orders.toml", name="orders")
    merged = dg.Definitions.merge(mine(), heartbeats.definitions(), orders.definitions())
    dg.Definitions.validate_loadable(merged)
    for pipeline, name in ((heartbeats, "tidemark"), (orders, "orders")):
        assert pipeline.name == name
        assert pipeline.diffs == dg.AssetKey([name, "heartbeat_diffs"])
        assert {pipeline.diffs, pipeline.heartbeats, pipeline.watermark} <= set(merged.resolve_all_asset_keys())
        for job in ("compute_windows", "ingest", "repair", "requeue", "housekeeping", "tune_watermark"):
            resolved = merged.resolve_job_def(f"{name}_{job}")
            assert resolved.tags[PIPELINE] == pipeline_tag(pipeline.settings.lake.uri)
            assert resolved.executor_def is dg.in_process_executor
        tracking = merged.resolve_sensor_def(f"{name}_tracking")
        assert {target.job_name for target in tracking.targets} == {f"{name}_compute_windows"}
    assert merged.executor is dg.multiprocess_executor
    assert merged.resolve_job_def("repair").executor_def is dg.multiprocess_executor
    ours = [definitions.assets or [] for definitions in (heartbeats.definitions(), orders.definitions())]
    assert len(list(merged.resolve_all_asset_keys())) == 1 + sum(map(len, ours))


def test_the_example_project_loads_and_its_asset_reads_closed_windows() -> None:
    file = ROOT / "examples" / "own_project" / "definitions.py"
    (target,) = loadable_targets_from_python_file(str(file))
    dg.Definitions.validate_loadable(target.target_definition)
    project = runpy.run_path(str(file))
    gaps = project["gaps"]
    keys = project["heartbeats"].windows.get_first_partition_key()
    result = dg.materialize([gaps], partition_key=keys)
    assert result.asset_materializations_for_node("gaps")[0].metadata["rows"].value == 0
    assert project["orders"].diffs in set(project["defs"].resolve_all_asset_keys())


def test_a_component_is_a_pipeline_that_yaml_names(folder: Path) -> None:
    attributes = {"config": str(folder / "orders.toml"), "name": "orders", "topic": "theirs/orders"}
    topic = dg.AssetKey(["theirs", "orders"])
    with create_defs_folder_sandbox(project_name="somebodys") as sandbox:
        place = sandbox.scaffold_component(
            tidemark.Pipeline, defs_yaml_contents={"type": "tidemark.Pipeline", "attributes": attributes}
        )
        with sandbox.load_component_and_build_defs(defs_path=place) as (component, loaded):
            assert isinstance(component, tidemark.Pipeline)
            same = td.pipeline("orders.toml", name="orders", topic=topic)
            assert set(loaded.resolve_all_asset_keys()) == set(same.definitions().resolve_all_asset_keys())
            assert loaded.resolve_job_def("orders_ingest").tags[PIPELINE] == pipeline_tag(same.settings.lake.uri)


NOW = SystemClock().now()


class Downstream:
    """An asset over the hours of windows, or over days, and what its condition asks for."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, *, by_day: bool = False) -> None:
        settings = settings_of(PubSubSettings(), folder)
        hours = Partitions(settings.windowing, NOW).definition()
        self.hours = hours.get_partition_keys(current_time=NOW)
        self.hour = self.hours[-3]
        days = dg.DailyPartitionsDefinition(settings.windowing.first.strftime("%Y-%m-%d"))

        @dg.asset(
            deps=[HEARTBEAT_DIFFS, HEARTBEATS, "never_materialized"],
            partitions_def=days if by_day else hours,
            automation_condition=td.Pipeline(settings).on_computed,
        )
        def anomalies() -> None: ...

        self.key, self.instance = anomalies.key, instance
        self.definitions = dg.Definitions.merge(build_definitions(settings), dg.Definitions(assets=[anomalies]))
        self._cursor = None
        assert self.asked() == set()

    def computed(self, hour: str | None = None) -> None:
        """Windows of the hour, as the run reports it that computes its last one, or one of them again."""
        self.instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEAT_DIFFS, partition=hour or self.hour))

    def asked(self) -> set[str]:
        """The partitions that the condition asks for now."""
        found = dg.evaluate_automation_conditions(
            self.definitions, self.instance, evaluation_time=SystemClock().now(), cursor=self._cursor
        )
        self._cursor = found.cursor
        return found.get_requested_partitions(self.key)

    def begun(self) -> dg.DagsterRun:
        """The asset's run over the hour, at work."""
        run = create_run_for_test(self.instance, job_name="theirs", status=dg.DagsterRunStatus.STARTED)
        planned = AssetMaterializationPlannedData(self.key, partition=self.hour)
        event = DagsterEvent.build_asset_materialization_planned_event("theirs", "anomalies", planned)
        self.instance.report_dagster_event(event, run.run_id)
        return run

    def ended(self, run: dg.DagsterRun) -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(self.key, partition=self.hour))
        self.instance.report_dagster_event(DagsterEvent("PIPELINE_SUCCESS", "theirs"), run.run_id)


def test_an_hour_computed_again_while_read_is_requested_again(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    theirs = Downstream(tmp_path, instance)
    theirs.computed()
    assert theirs.asked() == {theirs.hour}
    run = theirs.begun()
    assert theirs.asked() == set()
    theirs.computed()
    assert theirs.asked() == set()
    theirs.ended(run)
    assert theirs.asked() == {theirs.hour}
    theirs.ended(theirs.begun())
    instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEATS))
    assert theirs.asked() == set(), "a landing tick computes no hour"


def test_a_day_of_theirs_waits_for_each_of_its_hours(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    day = (NOW - timedelta(days=2)).strftime("%Y-%m-%d")
    theirs = Downstream(tmp_path, instance, by_day=True)
    *others, last = [hour for hour in theirs.hours if hour.startswith(day)]
    for hour in others:
        theirs.computed(hour)
    assert (len(others), theirs.asked()) == (23, set())
    theirs.computed(last)
    assert theirs.asked() == {day}


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
