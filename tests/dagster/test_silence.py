"""Silent streams in Dagster: by window, beside the diffs of the same run, with a check."""

from datetime import timedelta
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


@pytest.fixture(scope="module")
def materialized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Materializing, dg.ExecuteInProcessResult]:
    """Three closed windows computed in one run: a stream that stops, one that pauses, one that is there again."""
    lake = Materializing(tmp_path_factory.mktemp("silence"), CLASSIC)
    lake.land([("pausing", START + timedelta(seconds=seconds)) for seconds in (2, 32, 152, 182)])
    with dg.DagsterInstance.ephemeral() as instance:
        return lake, lake.run(WINDOWS[0], WINDOWS[-1], instance)


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What is said of the status, by the window that it is of."""
    found = [
        {
            name: value.value if not isinstance(value, dg.TableMetadataValue) else value.records
            for name, value in event.metadata.items()
        }
        for event in told(result)
        if event.asset_key == STREAM_STATUS
    ]
    return {said["of_window"]: said for said in found}


def test_each_window_has_its_counts_as_numbers(materialized: tuple[Materializing, dg.ExecuteInProcessResult]) -> None:
    lake, result = materialized
    assert result.success
    resource = (build_definitions(lake.settings).resources or {})["lake"]
    found = {one.window: one for one in silence_report(resource, WINDOWS).windows}
    assert sorted(found) == WINDOWS
    (last,) = metadata_of(result).items()
    assert (last[0], last[1]["streams"], last[1]["windows"]) == (WINDOWS[2], 3, 3)
    counts = ("streams", "absent", "stopped", "started", "new", "missing", "missed_heartbeats")
    assert [[getattr(found[key], name) for name in counts] for key in WINDOWS] == [
        [4, 0, 0, 4, 4, 0, 0],
        [2, 2, 2, 0, 0, 0, 0],
        [3, 1, 1, 0, 0, 1, 3],
    ]
    assert found[WINDOWS[1]].stopped_share == 0.5


def test_the_streams_are_named_in_a_table(materialized: tuple[Materializing, dg.ExecuteInProcessResult]) -> None:
    records = [record.data for record in metadata_of(materialized[1])[WINDOWS[2]]["first_of_each_kind"]]
    assert [(row["kind"], row["stream"], row["missed_heartbeats"]) for row in records] == [
        ("stopped", "silent", None),
        ("missed", "pausing", 3),
    ]
    assert records[0]["last"] == "2026-11-21T05:20:05Z"


def test_the_check_warns_of_the_worst_window(materialized: tuple[Materializing, dg.ExecuteInProcessResult]) -> None:
    _, result = materialized
    (evaluation,) = [found for found in result.get_asset_check_evaluations() if found.check_name == FEW_STOPPED]
    assert (evaluation.asset_key, evaluation.passed, evaluation.severity) == (
        STREAM_STATUS,
        False,
        dg.AssetCheckSeverity.WARN,
    )
    assert "at most 50.00% of the streams stopped in one window (2 in 2026-11-21T05-21Z)" in str(evaluation.description)
    assert evaluation.metadata["windows_beyond"].value == 2


def test_materialized_alone_it_computes_nothing_and_reports_what_stands(
    materialized: tuple[Materializing, dg.ExecuteInProcessResult],
) -> None:
    lake, before = materialized
    lake.decide(START + timedelta(hours=1))
    version = lake.lake.diffs().table.current().version()
    with dg.DagsterInstance.ephemeral() as instance:
        again = dg.materialize(
            [stream_status_asset(lake.settings, Partitions(lake.settings.windowing, SystemClock().now()))],
            instance=instance,
            partition_key=HOUR,
            resources={"lake": (build_definitions(lake.settings).resources or {})["lake"]},
        )
    assert again.success
    (now,), (then,) = (metadata_of(result).values() for result in (again, before))
    assert {**now, "windows": 3, "windows_computed": then["windows_computed"]} == then
    assert lake.lake.diffs().table.current().version() == version


@pytest.mark.parametrize(("stopped", "passed"), [(5, True), (6, False)])
def test_the_check_passes_up_to_the_tolerated_number(stopped: int, passed: bool) -> None:
    windows = [WindowSilence("first", streams=100), WindowSilence("second", streams=100 - stopped, stopped=stopped)]
    assert stopped_result(Settings(checks=CheckSettings(max_stopped_share=0.05)), windows).passed is passed
