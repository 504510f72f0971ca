"""What is on the disk before anything is acknowledged: data files, commits, checkpoints, and their folders."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tidemark.pipeline.errors import LakeFull
from tidemark.pipeline.lake.tables.commit_sync import RECENT_COMMITS


class Disk:
    """Which files and folders of a lake have been synced as they are now: a power cut loses all others."""

    def __init__(self, lake: Path, patch: pytest.MonkeyPatch) -> None:
        self.lake = lake
        self._synced: dict[Path, int] = {}
        self.fails: OSError | None = None
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self._record)

    def _record(self, descriptor: int) -> None:
        if self.fails is not None:
            raise self.fails
        self._fsync(descriptor)
        self._synced[Path(f"/proc/self/fd/{descriptor}").readlink()] = os.fstat(descriptor).st_mtime_ns

    def not_durable(self, table: str = "heartbeats") -> list[str]:
        """What of a table a power cut would lose, by its path in the lake."""
        there = [self.lake, *(self.lake / table).rglob("*"), self.lake / table]
        lost = [path for path in there if self._synced.get(path) != path.stat().st_mtime_ns]
        return sorted(path.relative_to(self.lake).as_posix() for path in lost)

    def forget(self, table: str = "heartbeats") -> None:
        """Another process wrote what is there, and its machine is still up."""
        for path in [*(self.lake / table).rglob("*"), self.lake / table]:
            self._synced[path] = path.stat().st_mtime_ns


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "lake", monkeypatch)


def beats(*seconds: float) -> dict[str, list[Any]]:
    return columns_of([Beat("a", second) for second in seconds])


def land(folder: Path, number: int) -> None:
    """Another process lands."""
    append_beats(lake_in(folder).heartbeats(), beats(3600 * number))


def test_an_append_is_on_the_disk_with_its_folders_when_it_returns_or_fails(tmp_path: Path, disk: Disk) -> None:
    heartbeats = lake_in(tmp_path).heartbeats()
    for number in range(3):
        append_beats(heartbeats, beats(3600 * number, 3600 * number + 7200))
        assert disk.not_durable() == []
    disk.fails = OSError(28, "No space left on device")
    with pytest.raises(LakeFull):
        append_beats(heartbeats, beats(2))


def test_commits_of_others_are_on_the_disk_since_no_later_one_can_be_read_without_them(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats = lake_in(tmp_path).heartbeats()
    append_beats(heartbeats, beats(1))
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.pipeline.lake.tables.commit_sync.CommitSync._sync", lambda *_: None)
        for number in range(3):
            land(tmp_path, number)  # and the process ends before it syncs
    assert disk.not_durable() != []
    append_beats(heartbeats, beats(2))
    assert disk.not_durable() == []


def test_a_process_that_opens_a_table_syncs_what_the_last_one_may_have_left(tmp_path: Path, disk: Disk) -> None:
    for number in range(RECENT_COMMITS - 1):
        land(tmp_path, number % 3)
    disk._synced.clear()
    land(tmp_path, 1)
    assert disk.not_durable() == []


def test_a_commit_that_was_cleaned_up_meanwhile_hinders_nobody(tmp_path: Path, disk: Disk) -> None:
    heartbeats = lake_in(tmp_path).heartbeats()
    append_beats(heartbeats, beats(1))
    for number in range(5):
        land(tmp_path, number)
    DeltaTable(str(tmp_path / "lake/heartbeats")).create_checkpoint()
    for version in range(4):
        (tmp_path / "lake" / "heartbeats" / "_delta_log" / f"{version:020d}.json").unlink()
    disk.forget()
    append_beats(heartbeats, beats(2))
    assert disk.not_durable() == []


def test_files_of_a_run_are_on_the_disk_before_a_commit_names_them(tmp_path: Path, disk: Disk) -> None:
    table = lake_in(tmp_path).diffs().table
    path = "runs/r/window=w/part.parquet"
    written = tmp_path / "lake" / "heartbeat_diffs" / path
    written.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), written)
    table.make_files_durable([path])
    assert disk.not_durable("heartbeat_diffs") == []
