"""Reads the commits of a Delta table: which files each commit added and removed.

A commit never changes. Each process therefore reads a commit once, and caches it for all callers.
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
from tidemark.pipeline.errors import UNREADABLE, CorruptObject, ObjectMissing
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER
from tidemark.pipeline.lake.tables.table import CUT, DataFile, LakeTable, table_errors

OURS = "tidemark."
"""The prefix of the metadata keys in commits that tidemark makes."""

RUN, ROUND = f"{OURS}run", f"{OURS}round"
"""Metadata keys in a commit of an ingest run, which lands messages in rounds. RUN has the run's name, and ROUND the
round's number."""

NEWEST_COMMITS = 5
"""Maximum number of newest commits in which `last_round` looks for a round. Ticks, requeues and compactions may have
committed after the last round."""

FILES_REMEMBERED = 20_000
"""Maximum number of commits and files cached per table. A full cache takes about ten megabytes per table."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a Delta table. `digest` is a hash of the commit's content, `at` its time, and `metadata` the part of
    its metadata that tidemark wrote.

    `added` and `removed` are the files whose rows the commit added and removed, as the commit lists them. They do not
    include the files of a compaction, which only moves rows. `removed` maps each path to its partition, or to None if
    the commit does not name the partition. `is_append` is true if the commit removed no file at all; it is false for a
    compaction.
    """

    version: int
    digest: bytes
    at: datetime | None
    metadata: Mapping[str, Any]
    added: Sequence[DataFile]
    removed: Mapping[str, str | None]
    is_append: bool


_read: dict[str, Sequence[Commit]] = {}
"""The cached commits by table address. The commits of a table are consecutive."""


class Follower:
    """Passes each new commit of a table to a caller's function once, in order, so that the caller can keep a summary of
    the table up to date."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._processed: Commit | None = None
        """The last commit that `follow` has processed; None if the next call must start from the whole table."""

    def follow(self, fold: Callable[[Commit], bool], begin: Callable[[DeltaTable | None], None], at_most: int) -> None:
        """Call `fold` with each commit since the last call of `follow`. If that is not possible, call `begin` with the
        table at its newest version instead, so that the caller can start again from all files of the table. If the
        table does not exist, the argument of `begin` is None.

        `begin` is called in these cases:
        - This is the first call, or the last call raised an error.
        - `fold` returned False.
        - A commit is gone or damaged.
        - The table was deleted or recreated.
        - There are more than `at_most` new commits.

        Raises LakeError, and the errors of `fold` and `begin`.
        """
        news, processed = self._news(at_most), self._processed
        self._processed = None
        if news is not None and all(map(fold, news)):
            self._processed = news[-1] if news else processed
            return
        current = self._table.current()
        newest = None if current is None else read_commit(self._table, current.version())
        begin(current)
        self._processed = newest

    def _news(self, at_most: int) -> Sequence[Commit] | None:
        """Return the commits since the last processed one. Return None if they cannot be determined, or if there are
        more than `at_most`. Reads the newest known commit again, to notice if the table was recreated."""
        processed = self._processed
        if processed is None:
            return None
        known = _read.get(self._table.uri, ())
        found = [processed, *(commit for commit in known if commit.version > processed.version and processed in known)]
        try:
            if read_commit(self._table, found[-1].version) != found[-1]:
                return None
            while len(found) <= at_most:
                try:
                    found.append(read_commit(self._table, found[-1].version + 1))
                except ObjectMissing:
                    _remember(self._table, found)
                    return found[1:]
        except UNREADABLE:
            pass
        return None


def commits(table: LakeTable, after: int, through: int) -> Sequence[Commit]:
    """Return the commits of the versions `after + 1` to `through`, in order.

    Cached commits are not read again, except the newest one: it shows whether the table was recreated. Raises
    ObjectMissing if a commit is gone, because the Delta library deletes old commits. Raises CorruptObject, LakeError.
    """
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
    """Read the commit of a version from the table's log. Raises ObjectMissing if it does not exist, CorruptObject,
    LakeError."""
    name = f"{LOG_FOLDER}/{version:020d}.json"
    gone = ObjectMissing(f"{table.uri}/{name} is gone, so it is unknown which files this commit added")
    with table_errors(table.uri, lambda _: gone):
        content = _content(table.folder, name)
    try:
        return _parsed(version, content, table.partition_column)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{table.uri}/{name} is damaged ({error!r}); restore a backup") from error


def says_of(run: str, number: int) -> Mapping[str, str]:
    """Return the commit metadata for round `number` of the ingest run `run`."""
    return {RUN: run, ROUND: str(number)}


def last_round(table: LakeTable) -> tuple[str, int, datetime] | None:
    """Return the run, the number and the commit time of the last round of an ingest run that was committed to the
    table. Return None if none of the NEWEST_COMMITS newest commits is from an ingest run. Raises LakeError."""
    current = table.current()
    newest = -1 if current is None else current.version()
    with suppress(ObjectMissing):  # the library has deleted old commits
        for version in range(newest, max(newest - NEWEST_COMMITS, -1), -1):
            commit = read_commit(table, version)
            if ROUND in commit.metadata and commit.at is not None:
                return commit.metadata[RUN], int(commit.metadata[ROUND]), commit.at
    return None


def _remember(table: LakeTable, found: Sequence[Commit]) -> None:
    """Cache consecutive commits. If they overlap the table's cached commits, extend the cache. Otherwise, replace it.

    Invariant: if a cached commit still belongs to the table, so do all cached commits before it. Later cached commits
    may not, because the table may have been restored to an earlier version.
    """
    kept = _read.get(table.uri, ())
    if kept and (found[0] in kept or kept[0] in found):
        both = {commit.version: commit for commit in (*kept, *found)}
        found = [both[version] for version in sorted(both)]
    weights = list(accumulate(1 + len(commit.added) + len(commit.removed) for commit in reversed(found)))
    _read[table.uri] = found[len(found) - bisect_right(weights, FILES_REMEMBERED) :]


def first_commit(table: LakeTable, after: int) -> int | None:
    """Return the lowest version greater than `after` whose commit is still in the table's log; None if there is no such
    version. Raises LakeError."""
    with table_errors(table.uri):
        following = table.folder.get_file_info(f"{LOG_FOLDER}/{after + 1:020d}.json")
    if following.type == pafs.FileType.File:
        return after + 1
    names = (path.rpartition("/")[2].removesuffix(".json") for path in logged(table))
    return min((int(name) for name in names if name.isdigit() and int(name) > after), default=None)


def logged(table: LakeTable) -> list[str]:
    """Return the paths of all commit files that are still in the table's log. Raises LakeError."""
    with table_errors(table.uri):
        found = table.folder.get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
    return [info.path for info in found if info.path.endswith(".json") and info.path.count("/") == 1]


def actions(files: pafs.FileSystem, commit: str) -> list[Mapping[str, Any]]:
    """Return the Delta actions in the commit file at the path `commit` of the file system `files`."""
    return _actions(_content(files, commit))


def _actions(content: bytes) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line]


def _content(files: pafs.FileSystem, name: str) -> bytes:
    with files.open_input_stream(name) as stream:
        content: bytes = stream.read()
        return content


def _parsed(version: int, content: bytes, column: str) -> Commit:
    found = _actions(content)
    info: Mapping[str, Any] = next((action["commitInfo"] for action in found if action.get("commitInfo")), {})
    adds, removes = ([action[kind] for action in found if action.get(kind)] for kind in ("add", "remove"))
    return Commit(
        version=version,
        digest=blake2b(content, digest_size=16).digest(),
        at=from_us(info["timestamp"] * 1000) if info.get("timestamp") else None,
        metadata={name: value for name, value in info.items() if name.startswith(OURS)},
        added=[_added(version, add, column) for add in adds if add["dataChange"]],
        removed={
            unquote(remove["path"]): (remove.get("partitionValues") or {}).get(column)
            for remove in removes
            if remove["dataChange"]
        },
        is_append=not removes,
    )


def _added(version: int, add: Mapping[str, Any], column: str) -> DataFile:
    stats = json.loads(add.get("stats") or "{}")
    oldest, newest = ((stats.get(bound) or {}).get("event_time") for bound in ("minValues", "maxValues"))
    return DataFile(
        path=unquote(add["path"]),
        rows=stats.get("numRecords", 0),
        size=add["size"],
        partition=add["partitionValues"][column] if column else "",
        added_at=from_us(add["modificationTime"] * 1000),
        oldest=None if oldest is None else datetime.fromisoformat(oldest),
        newest=None if newest is None else datetime.fromisoformat(newest) + CUT,
        version=version,
    )
