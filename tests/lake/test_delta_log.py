"""A table's commits: each is told once and in order, and read once a process, whatever happens to the table."""

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow.fs as pafs
import pytest

from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.tables.delta_log import Commit, Follower, commits
from tidemark.pipeline.lake.tables.table import LakeTable


class Log:
    """A table's log, made by hand: a table as far as who follows it asks."""

    partition_column = "window"

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder)
        self._log = folder / "_delta_log"
        self._log.mkdir(parents=True)
        self.folder = pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem())
        self.paths: list[str] = []
        """Of the file that each version adds."""

    def user(self) -> "User":
        return User(self)

    def read(self, after: int, through: int) -> list[str]:
        return paths_of(commits(cast("LakeTable", self), after, through))

    def current(self) -> "Log | None":
        return self if self.paths else None

    def version(self) -> int:
        return len(self.paths) - 1

    def place(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def commit(self) -> None:
        path = uuid.uuid4().hex
        add = {"path": path, "partitionValues": {"window": "w"}, "dataChange": True}
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
    with pytest.raises(ObjectMissing, match=r"3.json is gone"):
        log.read(1, 4)
    log.place(4).write_text('{"add"')
    with pytest.raises(CorruptObject, match=r"4.json is damaged"):
        user.follow()
    log.put_back(0)
    assert (user.follow(), user.begun) == ([], 5)


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
def test_whatever_happens_to_a_table_its_commits_are_told_as_they_are(tmp_path: Path, seed: int) -> None:
    rng, log = random.Random(seed), Log(tmp_path)
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
