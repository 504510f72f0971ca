"""Reads the commits of a Delta table: the files that each one added and removed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from tidemark.pipeline.clock import from_us
from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.tables.table import CUT, DataFile, LakeTable
from tidemark.pipeline.lake.tables.table_log import actions_in, commit_name, commit_time, info_in, naming_damage

OURS = "tidemark."
"""The prefix of the metadata keys in commits that tidemark makes."""

RUN, ROUND = f"{OURS}run", f"{OURS}round"
"""Metadata keys in a commit of an ingest run, which lands messages in rounds. RUN has the run's name, and ROUND the
round's number."""

NEWEST_COMMITS = 5
"""Maximum number of newest commits in which `last_round` looks for a round. Ticks, requeues and compactions may have
committed after the last round."""


Processed = tuple[int, bytes]
"""The version and the content of a commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a Delta table. `at` is its time, and `metadata` has the entries that tidemark wrote to the commit.

    `added` and `removed` are the files whose rows the commit added and removed, as the commit lists them. They do not
    include the files of a compaction, which only moves rows. `removed` maps each path to its partition, or to None if
    the commit does not name the partition. `is_append` is true if the commit removed no file at all; it is false for a
    compaction.
    """

    version: int
    at: datetime | None
    metadata: Mapping[str, Any]
    added: Sequence[DataFile]
    removed: Mapping[str, str | None]
    is_append: bool


class Follower:
    """Passes each new commit of a table to a function once, in order. So a caller can keep a summary of the table up to
    date."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._processed: Processed | None = None
        """The last commit that `follow` has processed; None if the next call must start from the whole table."""

    def follow(self, fold: Callable[[Commit], bool], begin: Callable[[DeltaTable | None], None], at_most: int) -> None:
        """Call `fold` with each commit since the last call of `follow`. If that is not possible, call `begin` with the
        table at its newest version instead, so that the caller can start again from all files of the table. If the
        table does not exist, the argument of `begin` is None.

        `begin` is called in these cases:
        - This is the first call, or the last call raised an error or found no table.
        - `fold` returned False.
        - A commit is gone or damaged.
        - The table was deleted or recreated.
        - There are more than `at_most` new commits.

        Raises LakeError, and the errors of `fold` and `begin`.
        """
        (news, processed), self._processed = self._news(at_most), None
        if processed is not None and all(map(fold, news)):
            self._processed = processed
            return
        current = self._table.current()
        processed = None if current is None else (current.version(), self._table.log.newest)
        begin(current)
        self._processed = processed

    def _news(self, at_most: int) -> tuple[Sequence[Commit], Processed | None]:
        """Return the commits since the last processed one, and the commit from which the next call starts. Return `()`
        and None if the commits cannot be determined, or if there are more than `at_most`."""
        if self._processed is not None:
            version, content = self._processed
            found = self._table.log.since(version, at_most + 2)
            if found[:1] == [content] and len(found) < at_most + 2:
                with suppress(CorruptObject):
                    return _parsed(self._table, version, found)[1:], (version + len(found) - 1, found[-1])
        return (), None


def commits(table: LakeTable, after: int, through: int) -> Sequence[Commit]:
    """Return the commits of the versions `after + 1` to `through`, in order. Raises CorruptObject, LakeError, and
    ObjectMissing if a commit is gone (housekeeping deletes old ones)."""
    return _parsed(table, after + 1, table.log.between(after + 1, through))


def read_commit(table: LakeTable, version: int) -> Commit:
    """Read the commit of a version from the table's log. Raises CorruptObject, LakeError, and ObjectMissing if the
    commit does not exist."""
    return _parsed(table, version, [table.log.read(version)])[0]


def metadata_of_round(run: str, number: int) -> Mapping[str, str]:
    """Return the commit metadata for round `number` of the ingest run `run`."""
    return {RUN: run, ROUND: str(number)}


def last_round(table: LakeTable) -> tuple[str, int, datetime] | None:
    """Return the run, the number and the commit time of the last round that an ingest run committed to the table.
    Return None if none of the NEWEST_COMMITS newest commits is from an ingest run. Raises LakeError."""
    current = table.current()
    newest = -1 if current is None else current.version()
    with suppress(ObjectMissing):  # the library has deleted old commits
        for version in range(newest, max(newest - NEWEST_COMMITS, -1), -1):
            commit = read_commit(table, version)
            if ROUND in commit.metadata and commit.at is not None:
                return commit.metadata[RUN], int(commit.metadata[ROUND]), commit.at
    return None


def next_commits(table: LakeTable, after: int, at_most: int) -> Sequence[Commit]:
    """Return the first commits with a version greater than `after` that are still in the table's log, in order, up to
    the next one that is gone or damaged, and at most `at_most`. Raises LakeError."""
    with suppress(CorruptObject):
        found = table.log.since(first := after + 1, at_most)
        if not found and (later := [version for version in table.log.versions() if version > after]):
            found = table.log.since(first := later[0], at_most)
        return _parsed(table, first, found[:at_most])
    readable = list[Commit]()
    for version in table.log.versions():
        if len(readable) == at_most or (readable and version > readable[-1].version + 1):
            break
        if version > after:
            with suppress(CorruptObject, ObjectMissing):
                readable.append(read_commit(table, version))
    return readable


def _parsed(table: LakeTable, first: int, contents: Sequence[bytes]) -> list[Commit]:
    """Parse the commits of consecutive versions, from `first` on. Raises CorruptObject."""
    found = list[Commit]()
    for version, content in enumerate(contents, first):
        with naming_damage(f"{table.uri}/{commit_name(version)}"):
            found.append(_commit(version, actions_in(content), table.partition_column))
    return found


def _commit(version: int, actions: Sequence[Mapping[str, Any]], column: str) -> Commit:
    info = info_in(actions)
    adds, removes = ([action[kind] for action in actions if action.get(kind)] for kind in ("add", "remove"))
    ours = {name: value for name, value in info.items() if name.startswith(OURS)}
    added = [_added(version, add, column) for add in adds if add["dataChange"]]
    gone = (remove for remove in removes if remove["dataChange"])
    removed = {unquote(remove["path"]): (remove.get("partitionValues") or {}).get(column) for remove in gone}
    return Commit(version, commit_time(info), ours, added, removed, is_append=not removes)


def _added(version: int, add: Mapping[str, Any], column: str) -> DataFile:
    stats = json.loads(add.get("stats") or "{}")
    bounds = ((stats.get(bound) or {}).get("event_time") for bound in ("minValues", "maxValues"))
    oldest, newest = (None if bound is None else datetime.fromisoformat(bound) for bound in bounds)
    return DataFile(
        path=unquote(add["path"]),
        rows=stats.get("numRecords", 0),
        size=add["size"],
        partition=add["partitionValues"][column] if column else "",
        added_at=from_us(add["modificationTime"] * 1000),
        oldest=oldest,
        newest=newest and newest + CUT,
        version=version,
    )
