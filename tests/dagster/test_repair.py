"""The job that repairs, on a real lake and a real Spark session: each kind of harm is named, and mended."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import CLASSIC, START, WATERMARK, WINDOWS, Materializing, failure_of
from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.repair import REPAIR
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.upkeep.repair import Fault, Survey, Surveyor

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


class Repairing(Materializing):
    """A copy of a lake whose windows are computed, and runs of the repair."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, copied_from: Path) -> None:
        super().__init__(folder, CLASSIC, copied_from=copied_from)
        self.instance = instance
        self.whole = self.rows()

    def repair(self, **config: Any) -> dg.ExecuteInProcessResult:
        job = build_definitions(self.settings).resolve_job_def(REPAIR)
        ops = {"look_and_compute_again": {"config": config}}
        return job.execute_in_process(instance=self.instance, run_config={"ops": ops}, raise_on_error=False)

    def look(self) -> Survey:
        return Surveyor(self.settings, SystemClock()).look(START, WATERMARK, grace=timedelta(0))

    def file_of(self, key: str, table: str = "heartbeat_diffs") -> Path:
        lake = self.lake.diffs() if table == "heartbeat_diffs" else self.lake.stream_status()
        (path,) = lake.fence([key])[key]
        return self.folder / table / path


def materialized(result: dg.ExecuteInProcessResult, asset: dg.AssetKey = HEARTBEAT_DIFFS) -> list[str | None]:
    """The windows of an asset that Dagster knows as computed by a run, one of several in an hour."""
    return [
        key
        for event in told(result)
        if event.asset_key == asset
        for key in str(event.metadata["windows_computed"].value).split(", ")
    ]


def told(result: dg.ExecuteInProcessResult) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """What a run tells of assets by partition."""
    found = []
    for event in result.all_events:
        if event.is_step_materialization and event.partition:
            found.append(event.step_materialization_data.materialization)
        elif event.is_asset_observation:
            found.append(event.asset_observation_data.asset_observation)
    return found


def output(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def test_a_deleted_window_a_corrupt_object_and_an_orphan_are_each_named_and_mended(
    tmp_path: Path, computed: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        house = Repairing(tmp_path, instance, computed)
        assert house.look().is_sound
        gone, corrupt = house.file_of(WINDOWS[0]), house.file_of(WINDOWS[2])
        gone.unlink()
        content = bytearray(corrupt.read_bytes())
        content[-1] ^= 0x10  # a bit of the footer: the size is right
        corrupt.write_bytes(content)
        orphan = house.folder / "heartbeat_diffs" / "runs" / "dead" / f"window={WINDOWS[1]}" / "part-0.parquet"
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(house.file_of(WINDOWS[1]).read_bytes())

        dry = output(house.repair(dry_run=True, remove_orphans=True, grace="0"))
        assert (dry["windows_broken"], dry["windows_computed"], dry["orphans"], dry["orphans_removed"]) == (2, 0, 1, 0)
        assert (orphan.exists(), gone.exists()) == (True, False)

        result = house.repair(remove_orphans=True, grace="0")
        assert result.success
        said = output(result)
        assert said["windows_looked_at"] == 3
        assert said["found"].splitlines()[0] == f"damaged: {WINDOWS[0]}: {gone}: it is gone"
        assert said["found"].splitlines()[1].startswith(f"damaged: {WINDOWS[2]}: {corrupt}: it cannot be read: ")
        assert said["found"].splitlines()[2].startswith(f"orphaned: {orphan}: left by run dead (")
        assert (said["windows_computed"], said["orphans_removed"]) == (2, 1)
        assert materialized(result) == [WINDOWS[0], WINDOWS[2]]
        assert materialized(result, STREAM_STATUS) == [WINDOWS[0], WINDOWS[2]]
        assert house.rows().equals(house.whole)
        assert not orphan.exists()
        assert house.look().is_sound


def test_windows_whose_streams_status_is_gone_and_a_table_that_is_lost_are_computed_again(
    tmp_path: Path, computed: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        house = Repairing(tmp_path, instance, computed)
        house.file_of(WINDOWS[1], "stream_status").unlink()
        assert [(one.window.key, one.fault) for one in house.look().integrity.broken] == [(WINDOWS[1], Fault.DAMAGED)]
        assert materialized(house.repair()) == [WINDOWS[1]]
        assert house.look().is_sound

        (house.folder / "heartbeat_diffs").rename(house.folder.parent / "lost")
        assert materialized(house.repair(first_window=WINDOWS[0], last_window=WINDOWS[-1])) == [
            f"{WINDOWS[0]}..{WINDOWS[-1]}"
        ]
        assert house.rows().equals(house.whole)


def test_a_window_that_computing_does_not_repair_fails_the_run_and_is_named(tmp_path: Path, computed: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        house = Repairing(tmp_path, instance, computed)
        house.land([("after", WATERMARK - timedelta(seconds=1))])  # the last window is stale, of a file of its own
        assert [one.fault for one in house.look().integrity.broken] == [Fault.STALE]
        entry = house.folder / "tracking" / "log" / f"{0:012d}.parquet"
        entry.unlink()
        result = house.repair()
        assert not result.success
        assert f"{entry.relative_to(house.folder)} and all earlier entries are missing" in failure_of(result)
        assert materialized(result) == [WINDOWS[2]]
        assert house.look().integrity.broken == []
