"""A Delta table's own log: the files that each commit added and removed.

A commit never changes. Each process reads it once for all callers, and remembers it until the table is replaced.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake import DeltaTable

from tidemark.pipeline.clock import from_us
from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER
from tidemark.pipeline.lake.tables.table import CUT, LakeTable, table_errors

RUN, ROUND = "tidemark.run", "tidemark.round"
"""Metadata keys of a transaction that lands a round of an ingest run."""

NEWEST_COMMITS = 5
"""Number of newest commits searched for the last round: commits of ticks, requeues and compactions may follow it."""

FILES_REMEMBERED = 20_000
"""Maximum size of a table's remembered commits, counted as commits plus the files they name: some ten megabytes."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows: the version that added it, its path within the table, its partition, and the range of its
    event times, with the same meaning as in DataFile."""

    version: int
    path: str
    partition: str
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file whose rows a commit removed, and its partition (None if the commit does not say)."""

    path: str
    partition: str | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its version, a digest of its content, its time, its writer's metadata (`says`), and the files whose
    rows it `added` and `removed`, in order. A compaction only moves rows to other files, so its files are not included.
    `is_append` is true if the commit removed no file at all; a compaction does remove files."""

    version: int
    digest: bytes
    at: datetime | None
    says: Mapping[str, Any]
    added: Sequence[AddedFile]
    removed: Sequence[RemovedFile]
    is_append: bool


@dataclass(frozen=True, slots=True)
class LastRound:
    """A round of an ingest run: the run, the round's number, and the time of its transaction."""

    run: str
    number: int
    at: datetime


_read: dict[str, Sequence[Commit]] = {}
"""The consecutive commits that this process has read last, by table."""


class Follower:
    """Delivers each commit of a table once, in order, to one caller."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._told: Commit | None = None
        """The last commit that was folded, or at which the table was opened. Commits of two tables differ."""

    def follow(self, fold: Callable[[Commit], bool], begin: Callable[[DeltaTable | None], None], at_most: int) -> None:
        """Call `fold` with each new commit since the last call or, if that is not possible, call `begin`. `begin` gets
        the table at its newest version, whose list of files covers all commits so far (None if there is no table).

        `begin` is called the first time, after `fold` returned False, if a commit is gone or damaged, if the table was
        deleted or recreated, and if there are more than `at_most` commits.

        Guarantee: whatever is raised, the next call omits nothing. Raises LakeError, and what `fold` and `begin` raise.
        """
        news, told = self._news(at_most), self._told
        self._told = None
        if news is not None and all(map(fold, news)):
            self._told = news[-1] if news else told
            return
        current = self._table.current()
        newest = None if current is None else read_commit(self._table, current.version())
        begin(current)
        self._told = newest

    def _news(self, at_most: int) -> Sequence[Commit] | None:
        """Return the commits since the last delivered one; None if they cannot be determined, or there are more than
        `at_most`. Lists nothing: reading the newest known commit again shows whether the table is the same."""
        told = self._told
        if told is None:
            return None
        known = _read.get(self._table.uri, ())
        found = [told, *(commit for commit in known if commit.version > told.version and told in known)]
        try:
            if read_commit(self._table, found[-1].version) != found[-1]:
                return None
            while len(found) <= at_most:
                try:
                    found.append(read_commit(self._table, found[-1].version + 1))
                except ObjectMissing:
                    _remember(self._table, found)
                    return found[1:]
        except (ObjectMissing, CorruptObject):
            pass
        return None


def commits(table: LakeTable, after: int, through: int) -> Sequence[Commit]:
    """Return the commits of the versions `after + 1` to `through`, in order. Reads no commit twice, except the newest
    known one, which shows whether the table is the same. Raises ObjectMissing if a commit is gone: the log is cleaned
    up after checkpoints. Raises CorruptObject, LakeError."""
    versions = range(after + 1, through + 1)
    known = {commit.version: commit for commit in _read.get(table.uri, ()) if commit.version in versions}
    if known and read_commit(table, max(known)) != known[max(known)]:
        known = {}
    new = read_ahead(partial(read_commit, table), (version for version in versions if version not in known))
    found = sorted([*known.values(), *(commit for _, commit in new)], key=lambda commit: commit.version)
    if found:
        _remember(table, found)
    return found


def read_commit(table: LakeTable, version: int) -> Commit:
    """Read a commit from the log. Raises ObjectMissing if it does not exist, CorruptObject, LakeError."""
    name = f"{LOG_FOLDER}/{version:020d}.json"
    gone = ObjectMissing(f"{table.uri}/{name} is gone: what it added is not known")
    with table_errors(table.uri, lambda _: gone):
        content = _content(table.folder, name)
    try:
        return _parsed(version, content, table.partition_column)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{table.uri}/{name} is damaged ({error!r}); restore a copy") from error


def says_of(run: str, number: int) -> Mapping[str, str]:
    """Return the metadata of a transaction that lands this round of a run."""
    return {RUN: run, ROUND: str(number)}


def last_round(table: LakeTable) -> LastRound | None:
    """Return the newest round that landed anything; None if it is not among the newest commits. Raises LakeError."""
    current = table.current()
    newest = -1 if current is None else current.version()
    with suppress(ObjectMissing):  # the log was cut
        for version in range(newest, max(newest - NEWEST_COMMITS, -1), -1):
            commit = read_commit(table, version)
            if ROUND in commit.says and commit.at is not None:
                return LastRound(commit.says[RUN], int(commit.says[ROUND]), commit.at)
    return None


def _remember(table: LakeTable, found: Sequence[Commit]) -> None:
    """Remember consecutive commits, together with the commits remembered before if the two ranges overlap.

    Law: if a remembered commit still belongs to the table, so do all remembered commits before it. A table that was
    restored to an earlier state may have other commits after it.
    """
    kept = _read.get(table.uri, ())
    if kept and (found[0] in kept or kept[0] in found):
        both = {commit.version: commit for commit in (*kept, *found)}
        found = [both[version] for version in sorted(both)]
    weights = list(accumulate(1 + len(commit.added) + len(commit.removed) for commit in reversed(found)))
    _read[table.uri] = found[len(found) - bisect_right(weights, FILES_REMEMBERED) :]


def first_commit(table: LakeTable, after: int) -> int | None:
    """Return the first version after `after` whose commit is still in the log; None if there is none. Raises
    LakeError."""
    with table_errors(table.uri):
        following = table.folder.get_file_info(f"{LOG_FOLDER}/{after + 1:020d}.json")
    if following.type == pafs.FileType.File:
        return after + 1
    names = (path.rpartition("/")[2].removesuffix(".json") for path in logged(table))
    return min((int(name) for name in names if name.isdigit() and int(name) > after), default=None)


def logged(table: LakeTable) -> list[str]:
    """Return the paths of the commits that are still in a table's log. Raises LakeError."""
    with table_errors(table.uri):
        found = table.folder.get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
    return [info.path for info in found if info.path.endswith(".json") and info.path.count("/") == 1]


def actions(files: pafs.FileSystem, commit: str) -> list[Mapping[str, Any]]:
    """Read the actions of a commit."""
    return _actions(_content(files, commit))


def _actions(content: bytes) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line]


def _content(files: pafs.FileSystem, name: str) -> bytes:
    with files.open_input_stream(name) as stream:
        content: bytes = stream.read()
        return content


def _parsed(version: int, content: bytes, column: str) -> Commit:
    found = _actions(content)
    says: Mapping[str, Any] = next((action["commitInfo"] for action in found if action.get("commitInfo")), {})
    adds, removes = ([action[kind] for action in found if action.get(kind)] for kind in ("add", "remove"))
    return Commit(
        version=version,
        digest=blake2b(content, digest_size=16).digest(),
        at=from_us(says["timestamp"] * 1000) if says.get("timestamp") else None,
        says=says,
        added=[_added(version, add, column) for add in adds if add["dataChange"]],
        removed=[
            RemovedFile(unquote(remove["path"]), (remove.get("partitionValues") or {}).get(column))
            for remove in removes
            if remove["dataChange"]
        ],
        is_append=not removes,
    )


def _added(version: int, add: Mapping[str, Any], column: str) -> AddedFile:
    stats = json.loads(add.get("stats") or "{}")
    oldest, newest = ((stats.get(bound) or {}).get("event_time") for bound in ("minValues", "maxValues"))
    return AddedFile(
        version=version,
        path=unquote(add["path"]),
        partition=add["partitionValues"][column] if column else "",
        oldest=None if oldest is None else datetime.fromisoformat(oldest),
        newest=None if newest is None else datetime.fromisoformat(newest) + CUT,
    )
