"""The tuning report as an asset: materialized by Dagster over a lake that a run has left, and scheduled every day."""

import json
from pathlib import Path

import dagster as dg

from tests.tuning.tuning_traces import Source, ending_before, record
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.tuning import TUNE_WATERMARK, WATERMARK_TUNING
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings, WatermarkSettings

SLOW = Source(seconds=240, rate=20, streams=200, slow=1, slow_by=45, left=0)


def settings_in(folder: Path) -> Settings:
    return Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:8085"),  # nobody asks it; on it, there is no slack
        lake=LakeSettings(uri=f"file:{folder / 'lake'}"),
        watermark=WatermarkSettings(rule="frontier"),
    )


def run(settings: Settings, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = build_definitions(settings).resolve_job_def(TUNE_WATERMARK)
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_the_report_has_figures_that_can_be_plotted_the_worst_streams_and_its_page(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    record(lake, ending_before(SLOW.trace(), to_us(SystemClock().now())), settings.policy)
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(settings, instance).success
        (record_of_it,) = instance.fetch_materializations(WATERMARK_TUNING, limit=2).records
    assert record_of_it.asset_materialization is not None
    reported = record_of_it.asset_materialization.metadata
    figures = {name: value.value for name, value in reported.items()}
    assert figures["messages"] == SLOW.seconds * SLOW.rate
    assert figures["band_seconds"] == 10.0
    assert figures["slow_streams"] == 1
    assert "1 of 200 streams is slow by more than the band" in str(figures["says"])
    assert figures["late_share"] == figures["frontier/late_share"] > 0.001
    assert figures["band/late_share"] < figures["late_share"]
    assert figures["frontier/lag_p50_seconds"] < figures["band/lag_p50_seconds"]
    assert figures["frontier/lag_p99_seconds"] >= figures["frontier/lag_p50_seconds"]
    assert 40 < figures["frontier/band_seconds_for_late_0.0001"] <= 50
    numbers = [value for value in reported.values() if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)]
    assert len(numbers) > 15
    slowest = reported["slowest"]
    assert isinstance(slowest, dg.TableMetadataValue)
    assert slowest.records[0].data["stream"] == "stream-0000"
    assert slowest.records[0].data["slow_beyond_band"] > 0
    page = Path(str(figures["report"]).removeprefix("file:"))
    assert "<svg" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["messages"] == SLOW.seconds * SLOW.rate


def test_a_lake_in_which_nothing_has_landed_is_no_failure_and_no_report(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(settings_in(tmp_path), instance)
        assert result.success
        assert instance.get_latest_materialization_event(WATERMARK_TUNING) is None
