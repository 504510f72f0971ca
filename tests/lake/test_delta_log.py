"""A table's commits: each is told once and in order, and read once a process; and what is on the disk before anything
is acknowledged."""

import json
import os
import random
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.lake.builders import Beat, append_beats, columns_of, lake_in, put
from tidemark.pipeline.errors import CorruptObject, LakeFull, ObjectMissing
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.tables import table_log
from tidemark.pipeline.lake.tables.delta_log import Commit, Follower, commits
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.lake.tables.table_log import RECENT_COMMITS, TableLog
from tidemark.pipeline.upkeep.table_chores import trim


class Log:
    """A table's log, made by hand: a table as far as who follows it asks."""

    partition_column = "window"

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder)
        self._log = folder / "_delta_log"
        self._log.mkdir(parents=True)
        self.log = TableLog(DiskObjects(folder), self.no_table, copies=False)
        self.paths: list[str] = []
        """Of the file that each version adds."""

    def user(self) -> "User":
        return User(self)

    def read(self, after: int, through: int) -> list[str]:
        return paths_of(commits(cast("LakeTable", self), after, through))

    def no_table(self) -> DeltaTable:
        raise AssertionError

    def current(self) -> "Log | None":
        self.log.newest = self.log.read(self.version()) if self.paths else b""
        return self if self.paths else None

    def version(self) -> int:
        return len(self.paths) - 1

    def place(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def commit(self) -> None:
        path = uuid.uuid4().hex
        add = {"path": path, "partitionValues": {"window": "w"}, "dataChange": True, "size": 1, "modificationTime": 0}
        self.place(len(self.paths)).write_text(json.dumps({"add": add}))
        self.paths.append(path)

    def put_back(self, versions: int) -> None:
        """To an earlier state of itself; with 0 versions it is deleted."""
        for version in range(versions, len(self.paths)):
            self.place(version).unlink(missing_ok=True)
        del self.paths[versions:]


class User:
    """Who follows a table: the files that it was told, and how often it has begun anew."""

    def __init__(self, log: Log) -> None:
        self.told = list[str]()
        self.begun = 0
        self.fails = False
        self._follower = Follower(cast("LakeTable", log))

    def follow(self, at_most: int = 100) -> list[str]:
        self._follower.follow(self._fold, self._begin, at_most)
        return self.told

    def _fold(self, commit: Commit) -> bool:
        if self.fails:
            raise OSError("no memory")
        self.told += paths_of([commit])
        return True

    def _begin(self, log: Any) -> None:
        if self.fails:
            raise OSError("no memory")
        self.told, self.begun = [] if log is None else list(log.paths), self.begun + 1


def paths_of(found: Sequence[Commit]) -> list[str]:
    return [file.path for commit in found for file in commit.added]


def test_where_commits_are_not_enough_the_user_begins_anew(tmp_path: Path) -> None:
    log = Log(tmp_path)
    user = log.user()
    assert (user.follow(), user.begun) == ([], 1), "there is no table yet"
    for _ in range(3):
        log.commit()
    assert (user.follow(), user.begun) == (log.paths, 2)
    log.commit()
    assert (user.follow(at_most=0), user.begun) == (log.paths, 3)
    log.commit()
    log.place(3).unlink()
    assert (user.follow(), user.begun) == (log.paths, 4)
    with pytest.raises(ObjectMissing, match=r"3.json does not exist"):
        log.read(1, 4)
    log.commit()
    log.place(5).write_text('{"add"')
    with pytest.raises(CorruptObject, match=r"5.json is damaged"):
        log.read(3, 5)
    assert (user.follow(), user.begun) == (log.paths, 5)
    log.put_back(0)
    assert (user.follow(), user.begun) == ([], 6)


@pytest.mark.parametrize("begins", [False, True])
def test_what_a_user_failed_at_is_not_left_out(tmp_path: Path, *, begins: bool) -> None:
    log = Log(tmp_path)
    log.commit()
    user = log.user()
    if not begins:
        user.follow()
        log.commit()
    user.fails = True
    with pytest.raises(OSError, match="no memory"):
        user.follow()
    user.fails = False
    assert user.follow() == log.paths


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_commits_are_told_right(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, log = random.Random(seed), Log(tmp_path)
    monkeypatch.setattr(table_log, "CACHED_BYTES", rng.choice([0, 500, 2_000]))
    users = [log.user() for _ in range(3)]
    for _ in range(60):
        match rng.choice(["commit", "commit", "commit", "follow", "follow", "follow", "read", "put back"]):
            case "commit":
                for _ in range(rng.randint(1, 4)):
                    log.commit()
            case "follow":
                assert rng.choice(users).follow(rng.choice([2, 100])) == log.paths
            case "read" if log.paths:
                through = rng.randrange(len(log.paths))
                after = rng.randint(-1, through)
                assert log.read(after, through) == log.paths[after + 1 : through + 1]
            case "put back" if rng.random() < 0.3:
                log.put_back(rng.randint(0, len(log.paths)))


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
    trim(heartbeats, timedelta(days=1))
    assert disk.not_durable() == [], "its checkpoint too, without which the table does not open"
    (checkpoint,) = (disk.lake / "heartbeats/_delta_log").glob("*.checkpoint.parquet")
    for damaged in (checkpoint.read_bytes()[:-9], b""):
        checkpoint.write_bytes(damaged)
        with pytest.raises(CorruptObject, match="move _last_checkpoint, and the checkpoint"):
            lake_in(tmp_path).heartbeats().files()
    checkpoint.with_name("_last_checkpoint").unlink()
    checkpoint.unlink()
    assert len(lake_in(tmp_path).heartbeats().files()) == 6
    disk.fails = OSError(28, "No space left on device")
    with pytest.raises(LakeFull):
        append_beats(heartbeats, beats(2))


def test_commits_of_others_are_on_the_disk(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_commits_that_are_gone_or_damaged_before_the_checkpoint_hinder_nobody(tmp_path: Path, disk: Disk) -> None:
    heartbeats = lake_in(tmp_path).heartbeats()
    append_beats(heartbeats, beats(1))
    for number in range(5):
        land(tmp_path, number)
    DeltaTable(str(tmp_path / "lake/heartbeats")).create_checkpoint()
    log = tmp_path / "lake/heartbeats/_delta_log"
    for version in range(4):
        (log / f"{version:020d}.json").unlink()
    (log / f"{4:020d}.json").write_bytes(bytes(100))
    disk.forget()
    append_beats(heartbeats, beats(2))
    assert disk.not_durable() == []
    land(tmp_path, 5)
    (log / f"{7:020d}.json").write_bytes(b"")
    with pytest.raises(CorruptObject, match=f"{7:020d}.json is empty"):  # it is after the checkpoint
        lake_in(tmp_path).heartbeats().files()


def test_files_of_a_run_are_on_the_disk_before_a_commit_names_them(tmp_path: Path, disk: Disk) -> None:
    table = lake_in(tmp_path).diffs().table
    path = "runs/r/window=w/part.parquet"
    written = tmp_path / "lake" / "heartbeat_diffs" / path
    written.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), written)
    table.make_files_durable([path])
    assert disk.not_durable("heartbeat_diffs") == []


def test_an_unanswered_commit_is_on_the_disk(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    lands, windows = DeltaTable.create_write_transaction, {"2026-11-21T05-20Z": [{"stream_id": "a"}]}

    def lose_once(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", lands)
        lands(*given, **named)
        raise DeltaError("error sending request for url")

    diffs = lake_in(tmp_path).diffs()
    put(diffs, "first", windows)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_once)
    put(diffs, "again", windows)
    assert disk.not_durable("heartbeat_diffs") == []
