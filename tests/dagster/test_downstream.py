"""An asset of a user's own, downstream of the windows."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.test_utils import create_run_for_test

from tests.dagster.house import settings_of
from tidemark.assets.catalog import HEARTBEAT_DIFFS, ON_COMPUTED
from tidemark.assets.definitions import build_definitions
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings_sections import PubSubSettings

NOW = SystemClock().now()


class Downstream:
    """An asset over the hours of windows, or over days, and what its condition asks for."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, *, by_day: bool = False) -> None:
        settings = settings_of(PubSubSettings(), folder)
        hours = Partitions(settings.windowing, NOW).definition()
        self.hours = hours.get_partition_keys(current_time=NOW)
        self.hour = self.hours[-3]
        days = dg.DailyPartitionsDefinition(settings.windowing.first.strftime("%Y-%m-%d"))

        @dg.asset(deps=[HEARTBEAT_DIFFS], partitions_def=days if by_day else hours, automation_condition=ON_COMPUTED)
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


def test_an_hour_that_is_computed_again_while_it_is_read_is_requested_again_afterwards(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        theirs = Downstream(tmp_path, instance)
        theirs.computed()
        assert theirs.asked() == {theirs.hour}
        run = theirs.begun()
        assert theirs.asked() == set()
        theirs.computed()
        assert theirs.asked() == set()
        theirs.ended(run)
        assert theirs.asked() == {theirs.hour}


def test_a_day_of_theirs_waits_for_each_of_its_hours(tmp_path: Path) -> None:
    day = (NOW - timedelta(days=2)).strftime("%Y-%m-%d")
    with dg.DagsterInstance.ephemeral() as instance:
        theirs = Downstream(tmp_path, instance, by_day=True)
        *others, last = [hour for hour in theirs.hours if hour.startswith(day)]
        for hour in others:
            theirs.computed(hour)
        assert (len(others), theirs.asked()) == (23, set())
        theirs.computed(last)
        assert theirs.asked() == {day}
