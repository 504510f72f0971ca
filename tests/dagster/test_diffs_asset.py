"""The job that computes windows, run by Dagster on a real Spark session."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import tidemark.dagster as td
from tests.dagster.house import beats_between, settings_of
from tests.lake.builders import Beat, append_beats, columns_of
from tests.quick import classic
from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, TO
from tidemark.pipeline.orchestrator.names import WINDOWS as WINDOWS_TAG
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, SparkSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord

START = datetime(2026, 11, 21, 5, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = "2026-11-21T05-00Z"
"""The partition that holds them."""

WINDOWS = ["2026-11-21T05-20Z", "2026-11-21T05-21Z", "2026-11-21T05-22Z"]
WATERMARK = START + 3 * MINUTE
CLASSIC = classic("local[1]", **{"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"})

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


class Materializing:
    """A lake with three closed windows and a fourth that is open, or a copy of one, and runs over ranges of its
    windows."""

    def __init__(
        self, folder: Path, spark: SparkSettings, instance: dg.DagsterInstance, copied_from: Path | None = None
    ) -> None:
        self.instance = instance
        self.settings: Settings = settings_of(PubSubSettings(), folder, spark=spark)
        self.lake = Lake(self.settings.lake, self.settings.message.kinds, SystemClock())
        self.folder = folder / "lake"
        if copied_from is not None:
            shutil.copytree(copied_from, self.folder)
            return
        self.lake.tracking_log().begin(Beginning(START))
        self.decide(WATERMARK)
        self.land([("silent", START + timedelta(seconds=5)), *beats_between(START, START + 4 * MINUTE)])

    def decide(self, watermark: datetime) -> None:
        """Put the watermark there."""
        decision = Decision(at=watermark, watermark=watermark, reason=Reason.ADVANCED)
        self.lake.tracking_log().append(DecisionRecord(decision, None, None, Policy()))

    def land(self, beats: Sequence[tuple[str, datetime]]) -> None:
        rows = [
            Beat(stream, (moment - START).total_seconds(), values={"temperature": 20.0 + number, "status": "ok"})
            for number, (stream, moment) in enumerate(beats)
        ]
        append_beats(self.lake.heartbeats(), columns_of(rows, ["temperature", "status"]))

    def run(self, first: str, last: str) -> dg.ExecuteInProcessResult:
        """One run of the job over a range, with the tags that `tidemark repair --recompute` gives it."""
        job = build_definitions(self.settings).resolve_job_def(COMPUTE_WINDOWS)
        tags = {WINDOWS_TAG: f"{first}{TO}{last}"}
        return job.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False)

    def rows(self) -> pa.Table:
        table = self.lake.diffs().table.in_place()
        return table.to_pyarrow_table().sort_by([("stream_id", "ascending"), ("event_time", "ascending")])

    def written(self) -> list[Path]:
        """The files of diffs, and the manifests of their runs."""
        folders = (self.folder / "heartbeat_diffs", self.folder / "diff_runs")
        return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """What the step's failure says."""
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return str(event.step_failure_data.user_failure_data.description)


def test_a_run_over_a_range_computes_its_windows(materialized: tuple[Materializing, dg.ExecuteInProcessResult]) -> None:
    lake, result = materialized
    assert result.success
    rows = lake.rows()
    assert rows.num_rows == 13
    assert sorted(set(rows["window"].to_pylist())) == WINDOWS
    first = [row for row in rows.to_pylist() if row["stream_id"] == "stream-0"]
    assert [row["gap_seconds"] for row in first] == [None, 30.0, 30.0, 30.0, 30.0, 30.0]
    assert [row["temperature_delta"] for row in first[1:]] == [2.0] * 5


def test_a_custom_asset_reads_its_windows_rows(materialized: tuple[Materializing, dg.ExecuteInProcessResult]) -> None:
    lake, _ = materialized
    pipeline = td.Pipeline(lake.settings)
    rows = lake.rows()
    assert pipeline.read_diffs([HOUR]).sort_by([("stream_id", "ascending"), ("event_time", "ascending")]).equals(rows)
    assert pipeline.read_diffs([]).num_rows == pipeline.read_diffs(["2026-11-21T06-00Z"]).num_rows == 0
    assert pipeline.windows.has_partition_key(HOUR)
    with pytest.raises(ValueError, match="not the start of a window: windows start at multiples of 1h"):
        pipeline.read_diffs([WINDOWS[0]])


def test_a_window_above_the_watermark_fails_with_what_holds_it(house: Materializing) -> None:
    result = house.run(WINDOWS[1], "2026-11-21T05-23Z")
    assert not result.success
    said = failure_of(result)
    assert "windows that are not closed yet: 1 of 3; the watermark is at 2026-11-21T05:23:00Z" in said
    assert "the first open window is [2026-11-21T05:23:00Z, 2026-11-21T05:24:00Z). Nothing was written" in said
    assert house.written() == []
