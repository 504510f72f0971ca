"""Dagster where somebody else reads base: what there is, and that an hour is materialized once it is complete, once."""

import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_file

import tidemark.dagster as td
from tests.dagster.house import ModelWorld, Ticking, keys, metadata_of, publish, settings_of
from tests.ingest.model_subscription import ModelSubscription
from tidemark.assets import attached
from tidemark.assets.catalog import COMPLETE_WINDOWS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.housekeeping import prune_events
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings_sections import HousekeepingSettings, PubSubSettings
from tidemark.pipeline.windows import KEY_FORMAT

ROOT = Path(__file__).resolve().parents[2]
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
PUBSUB = PubSubSettings(attach=True)
NOON = SystemClock().now().replace(hour=12, minute=0, second=0, microsecond=0, tzinfo=UTC) - timedelta(days=2)
"""Two days ago: Dagster lists hours that are over by the machine's clock."""


def hour(number: int) -> str:
    """The key of an hour after noon."""
    return (NOON + number * HOUR).strftime(KEY_FORMAT)


@dataclass
class Attached(Ticking):
    """The sensors beside somebody who reads base, on a clock that moves when told to."""

    world: ModelWorld = field(default_factory=lambda: ModelWorld(PUBSUB))

    def lives(self, until: datetime, *, every: timedelta = 20 * MINUTE) -> SensorExecutionData:
        """Publishers publish and the reader acknowledges until a moment, with a tick now and then; the last tick."""
        theirs = ModelSubscription(self.world.model, self.settings.pubsub.base_path, self.world)
        while True:
            publish(self.world, self.settings, [("stream-0", self.clock.now())])
            self.world.clock.advance(3 * SECOND)
            theirs.acknowledge(theirs.pull(100, 1 << 20, 0.1).ack_ids)
            data = self.track()
            if self.clock.now() >= until:
                return data
            self.world.clock.advance(min(every, until - self.clock.now()))

    def materialized(self) -> list[str]:
        """The partitions of complete_windows, in the order in which they were reported."""
        found = self.instance.fetch_materializations(COMPLETE_WINDOWS, limit=1000, ascending=True)
        return [str(record.partition_key) for record in found.records]


@pytest.fixture
def house(tmp_path: Path, instance: dg.DagsterInstance) -> Attached:
    """From half past noon on."""
    world = ModelWorld(PUBSUB, NOON + HOUR / 2)
    return Attached(settings_of(PUBSUB, tmp_path), instance, world.clock, world)


# What there is


def test_there_is_what_needs_no_tables_and_no_spark(tmp_path: Path) -> None:
    settings = settings_of(PUBSUB, tmp_path)
    definitions = build_definitions(settings)
    dg.Definitions.validate_loadable(definitions)
    repository = definitions.get_repository_def()
    assert {key.to_user_string() for key in definitions.resolve_all_asset_keys()} == {
        *("topic", "base_subscription", "tracking_subscription"),
        *("tracking_histogram", "watermark", "complete_windows", "watermark_tuning"),
    }
    targeted = {sensor.name: sensor.asset_selection for sensor in repository.sensor_defs}
    kept = targeted["tracking"].resolve(repository.asset_graph)
    assert {key.to_user_string() for key in kept} == {"tracking_histogram", "watermark", "complete_windows"}
    assert targeted.keys() == {"tracking", "staleness"}
    assert {schedule.name for schedule in repository.schedule_defs} == {"daily_tuning", "hourly_housekeeping"}
    assert set(definitions.resources or {}) == {"pubsub", "lake"}
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    assert jobs == {"housekeeping", "tune_watermark"}
    checks = {(key.asset_key.to_user_string(), key.name) for key in repository.asset_graph.asset_check_keys}
    assert checks == {("watermark", "subscriptions"), ("watermark", "watermark_age")}
    with pytest.raises(InvalidSettings, match="custom tables are impossible"):
        build_definitions(settings, tables=[object()])  # type: ignore[list-item]


# Hours that are complete


def test_an_hour_is_materialized_once_the_watermark_has_passed_all_of_its_windows(house: Attached) -> None:
    data = house.lives(NOON + HOUR - SECOND)
    assert (keys(data), data.run_requests) == (["tracking_histogram", "watermark"], [])
    assert house.materialized() == []
    data = house.lives(NOON + HOUR + SECOND)
    told = metadata_of(data, "complete_windows")
    watermark = house.watermark()
    assert (told["windows"], told["first_window"]) == (60, hour(0))
    assert told["last_window"] == (NOON + 59 * MINUTE).strftime(KEY_FORMAT)
    assert (told["watermark"], told["decided_at"]) == (watermark.timestamp(), house.clock.now().timestamp())
    house.lives(NOON + HOUR + 40 * MINUTE)
    assert house.materialized() == [hour(0)]
    longer = house.settings.windows.model_copy(update={"length": 12 * HOUR})
    house.settings = house.settings.model_copy(update={"windows": longer})
    house.restart()
    house.lives(NOON + 12 * HOUR - SECOND, every=4 * HOUR)
    assert house.materialized() == [hour(0)], "the window of the same key is not complete"
    house.lives(NOON + 24 * HOUR + MINUTE, every=4 * HOUR)
    assert house.materialized() == [hour(0), hour(0), hour(12)]


def test_hours_of_an_outage_follow_a_bounded_number_a_tick(house: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "AT_ONCE", 3)
    house.lives(NOON + HOUR + MINUTE)
    house.world.clock.advance(7 * HOUR)
    house.restart()
    per_tick = [keys(house.lives(house.clock.now() + SECOND, every=SECOND)).count("complete_windows") for _ in range(4)]
    assert max(per_tick) == 3
    house.lives(house.clock.now() + 12 * SECOND, every=SECOND)
    assert house.materialized() == [hour(number) for number in range(8)]


def test_a_report_that_dagster_never_got_is_made_again(house: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    house.lives(NOON + HOUR - SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(house.instance, "report_runless_asset_event", lambda _: None)
        data = house.lives(NOON + HOUR + MINUTE)
    assert "complete_windows" in keys(data)
    assert house.materialized() == []
    house.lives(NOON + HOUR + 2 * MINUTE, every=MINUTE)
    house.lives(NOON + HOUR + 3 * MINUTE, every=MINUTE)
    assert house.materialized() == [hour(0)]


def test_housekeeping_keeps_a_lake_without_tables_and_never_forgets_an_hour(house: Attached) -> None:
    kept = dict.fromkeys(("heartbeats", "windows", "quarantine", "log"), 30 * timedelta(days=1))
    house.settings = house.settings.model_copy(update={"housekeeping": HousekeepingSettings(**kept)})
    house.restart()
    house.lives(NOON + 3 * HOUR + MINUTE)
    job = house.definitions.resolve_job_def("housekeeping")
    assert job.execute_in_process(instance=house.instance, resources=house.resources).success
    assert house.lake().tracking_log().numbers()
    prune_events(house.instance, house.settings, SystemClock().now() + HOUR)
    assert house.materialized() == [hour(number) for number in range(3)]


def test_the_example_is_a_code_location_whose_sensors_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "attach", tmp_path / "theirs")
    with served() as address, dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        monkeypatch.setenv("TIDEMARK_WATERMARK__TICK", "1s")
        pipeline = td.pipeline(tmp_path / "theirs" / "pipeline.toml")
        with_base = pipeline.settings.pubsub.model_copy(update={"attach": False})
        provision_here(pipeline.settings.model_copy(update={"pubsub": with_base}), SystemClock())
        (target,) = loadable_targets_from_python_file(str(tmp_path / "theirs" / "definitions.py"))
        defs: dg.Definitions = target.target_definition
        dg.Definitions.validate_loadable(defs)
        keys_there = {key.to_user_string() for key in defs.resolve_all_asset_keys()}
        assert {"hourly_report", "tidemark/complete_windows", "tidemark/watermark"} <= keys_there
        resources = {name: (defs.resources or {})[name] for name in ("tidemark_pubsub", "tidemark_lake")}
        with dg.build_sensor_context(
            instance=instance, definitions=defs, sensor_name="tidemark_tracking", resources=resources
        ) as context:
            data = defs.resolve_sensor_def("tidemark_tracking").evaluate_tick(context)
        assert keys(data) == ["tidemark/watermark"]

        found = dg.evaluate_automation_conditions(defs, instance)
        ended = pipeline.windows.get_partition_keys()[-1]
        instance.report_runless_asset_event(dg.AssetMaterialization(pipeline.complete_windows, partition=ended))
        found = dg.evaluate_automation_conditions(defs, instance, cursor=found.cursor)
        assert found.get_requested_partitions(dg.AssetKey("hourly_report")) == {ended}
        report = defs.resolve_assets_def(dg.AssetKey("hourly_report"))
        ran = dg.materialize([report], partition_key=ended, instance=instance, selection=[report])
        assert ran.success
        (made,) = ran.asset_materializations_for_node("hourly_report")
        assert str(made.metadata["where"].value).startswith(f"event_time >= TIMESTAMP '{ended[:13]}")
