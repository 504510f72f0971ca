"""Silent streams in Dagster, by window, beside the diffs of the same run; and the tuning report as an asset."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import HOUR, START, WINDOWS, Materializing
from tests.dagster.test_repair import told
from tests.tuning.tuning_traces import Source, ending_before, record
from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.by_window import UPDATED_AT
from tidemark.assets.jobs.heartbeat_diffs import FEW_STOPPED, silence_in, stopped_result, stream_status_asset
from tidemark.assets.jobs.tuning import TUNE_WATERMARK, WATERMARK_TUNING
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.silence import WindowSilence
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import CheckSettings, LakeSettings, PubSubSettings, WatermarkSettings

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


def metadata_of(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """What is said of the status, and the window that it is of."""
    (event,) = [event for event in told(result) if event.asset_key == STREAM_STATUS]
    said = {
        name: value.records if isinstance(value, dg.TableMetadataValue) else value.value
        for name, value in event.metadata.items()
    }
    return said["of_window"], said


def test_counts_first_streams_and_the_worst_window_are_told_and_again_without_computing(house: Materializing) -> None:
    """Three closed windows computed in one run: a stream that stops, one that pauses, one that is there again."""
    house.land([("pausing", START + timedelta(seconds=seconds)) for seconds in (2, 32, 152, 182)])
    resource = (build_definitions(house.settings).resources or {})["lake"]
    result = house.run(WINDOWS[0], WINDOWS[-1])
    version = house.lake.diffs().table.current().version()
    house.decide(START + timedelta(hours=1))
    again = dg.materialize(
        [stream_status_asset(house.settings, Partitions(house.settings.windowing, SystemClock().now()))],
        instance=house.instance,
        partition_key=HOUR,
        resources={"lake": resource},
    )
    assert result.success
    _, silence = silence_in(resource, WINDOWS, house.lake.stream_status().rows(WINDOWS))
    found = {one.window: one for one in silence}
    counts = ("streams", "absent", "stopped", "started", "new", "missing", "missed_heartbeats")
    assert [[getattr(found[key], name) for name in counts] for key in WINDOWS] == [
        [4, 0, 0, 4, 4, 0, 0],
        [2, 2, 2, 0, 0, 0, 0],
        [3, 1, 1, 0, 0, 1, 3],
    ]
    assert found[WINDOWS[1]].stopped_share == 0.5

    last, then = metadata_of(result)
    assert (last, then["streams"], then["windows"]) == (WINDOWS[2], 3, 3)
    records = [record.data for record in then["first_of_each_kind"]]
    assert [(row["kind"], row["stream"], row["missed_heartbeats"]) for row in records] == [
        ("stopped", "silent", None),
        ("missed", "pausing", 3),
    ]
    assert records[0]["last"] == "2026-11-21T05:20:05Z"
    (diffs,) = [event for event in told(result) if event.asset_key == HEARTBEAT_DIFFS]
    assert [diffs.metadata[name].value for name in ("silent_streams", "silent_streams_first")] == [1, "silent"]
    (check,) = [found for found in result.get_asset_check_evaluations() if found.check_name == FEW_STOPPED]
    assert (check.asset_key, check.passed, check.severity) == (STREAM_STATUS, False, dg.AssetCheckSeverity.WARN)
    assert "streams that stopped in one window: 50 % (2 in 2026-11-21T05-21Z)" in str(check.description)
    assert check.metadata["windows_beyond"].value == 2

    assert again.success
    _, now = metadata_of(again)
    assert {**now, "windows": 3, **{name: then[name] for name in ("windows_computed", UPDATED_AT)}} == then
    assert house.lake.diffs().table.current().version() == version


@pytest.mark.parametrize(("stopped", "passed"), [(5, True), (6, False)])
def test_the_check_passes_up_to_the_tolerated_number(stopped: int, passed: bool) -> None:
    windows = [WindowSilence("first", streams=100), WindowSilence("second", streams=100 - stopped, stopped=stopped)]
    assert stopped_result(Settings(checks=CheckSettings(max_stopped_share=0.05)), windows).passed is passed


SLOW = Source(seconds=240, rate=20, streams=200, slow=1, slow_by=45, left=0)


def settings_in(folder: Path) -> Settings:
    return Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:8085"),  # nobody asks it; on it, there is no slack
        lake=LakeSettings(uri=f"file:{folder / 'lake'}"),
        watermark=WatermarkSettings(rule="frontier"),
    )


def tuned(settings: Settings, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = build_definitions(settings).resolve_job_def(TUNE_WATERMARK)
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_the_report_has_figures_the_worst_streams_and_its_page(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    settings = settings_in(tmp_path)
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    record(lake, ending_before(SLOW.trace(), to_us(SystemClock().now())), settings.policy)
    assert tuned(settings, instance).success
    (record_of_it,) = instance.fetch_materializations(WATERMARK_TUNING, limit=2).records
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
    slowest = reported["slowest"].records[0].data
    assert slowest["stream"] == "stream-0000"
    assert slowest["slow_beyond_band"] > 0
    page = Path(str(figures["report"]).removeprefix("file:"))
    assert "<svg" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["messages"] == SLOW.seconds * SLOW.rate


def test_an_empty_lake_is_no_failure_and_no_report(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    assert tuned(settings_in(tmp_path), instance).success
    assert instance.get_latest_materialization_event(WATERMARK_TUNING) is None
