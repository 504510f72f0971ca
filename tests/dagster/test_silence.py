"""Silent streams in Dagster: by window, beside the diffs of the same run, with a check."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import CLASSIC, HOUR, START, WINDOWS, Materializing
from tests.dagster.test_repair import told
from tidemark.assets.catalog import STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.heartbeat_diffs import FEW_STOPPED, silence_report, stopped_result, stream_status_asset
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.quality.silence import WindowSilence
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import CheckSettings

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


def metadata_of(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """What is said of the status, and the window that it is of."""
    (event,) = [event for event in told(result) if event.asset_key == STREAM_STATUS]
    said = {
        name: value.records if isinstance(value, dg.TableMetadataValue) else value.value
        for name, value in event.metadata.items()
    }
    return said["of_window"], said


def test_counts_the_first_streams_and_the_worst_window_are_told_and_again_without_computing(tmp_path: Path) -> None:
    """Three closed windows computed in one run: a stream that stops, one that pauses, one that is there again."""
    house = Materializing(tmp_path, CLASSIC)
    house.land([("pausing", START + timedelta(seconds=seconds)) for seconds in (2, 32, 152, 182)])
    resource = (build_definitions(house.settings).resources or {})["lake"]
    with dg.DagsterInstance.ephemeral() as instance:
        result = house.run(WINDOWS[0], WINDOWS[-1], instance)
        version = house.lake.diffs().table.current().version()
        house.decide(START + timedelta(hours=1))
        again = dg.materialize(
            [stream_status_asset(house.settings, Partitions(house.settings.windowing, SystemClock().now()))],
            instance=instance,
            partition_key=HOUR,
            resources={"lake": resource},
        )
    assert result.success
    found = {one.window: one for one in silence_report(resource, WINDOWS).windows}
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
    (check,) = [found for found in result.get_asset_check_evaluations() if found.check_name == FEW_STOPPED]
    assert (check.asset_key, check.passed, check.severity) == (STREAM_STATUS, False, dg.AssetCheckSeverity.WARN)
    assert "at most 50.00% of the streams stopped in one window (2 in 2026-11-21T05-21Z)" in str(check.description)
    assert check.metadata["windows_beyond"].value == 2

    assert again.success
    _, now = metadata_of(again)
    assert {**now, "windows": 3, "windows_computed": then["windows_computed"]} == then
    assert house.lake.diffs().table.current().version() == version


@pytest.mark.parametrize(("stopped", "passed"), [(5, True), (6, False)])
def test_the_check_passes_up_to_the_tolerated_number(stopped: int, passed: bool) -> None:
    windows = [WindowSilence("first", streams=100), WindowSilence("second", streams=100 - stopped, stopped=stopped)]
    assert stopped_result(Settings(checks=CheckSettings(max_stopped_share=0.05)), windows).passed is passed
