"""A Delta table's own log: which files of new rows each commit added."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER
from tidemark.pipeline.lake.tables.table import LakeTable, table_errors


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows: the version that added it, its path within the table, its partition, and the least and the
    greatest time in it (None: its statistics do not say). `newest` may be cut to the millisecond."""

    version: int
    path: str
    partition: str
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What the versions up to `through` changed: the files of new rows that they `added`, in order, and whether they
    `removed` files as well. A compaction adds no new rows."""

    through: int
    added: list[AddedFile]
    removed: bool


def changes(table: LakeTable, after: int, through: int, column: str = "") -> Changes:
    """What the versions `after + 1` to `through` changed. `column` names the time whose range each file has. Raises
    ObjectMissing if one of the commits is gone from the log, which is cleaned up after checkpoints, or LakeError."""
    added, removed = list[AddedFile](), False
    for version, commit in committed(table, after, through):
        added += new_files(table, version, commit, column)
        removed = removed or any("remove" in action for action in commit)
    return Changes(through, added, removed)


def added_files(table: LakeTable, after: int, through: int) -> list[AddedFile]:
    """The files of new rows that the versions `after + 1` to `through` added, in order. Raises as `changes`."""
    return changes(table, after, through).added


def committed(table: LakeTable, after: int, through: int) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """The versions `after + 1` to `through` with their actions, in order. Raises as `changes`."""
    contents = read_ahead(partial(content_of, table), range(after + 1, through + 1))
    return ((version, actions_in(content)) for version, content in contents)


def content_of(table: LakeTable, version: int) -> bytes:
    """A commit as it was written. Raises ObjectMissing if it is not in the log, LakeError."""
    name = f"{LOG_FOLDER}/{version:020d}.json"
    gone = ObjectMissing(f"{table.uri}/{name} is gone: what it added is not known")
    with table_errors(table.uri, lambda _: gone):
        return _read(table.folder, name)


def new_files(table: LakeTable, version: int, commit: Iterable[Mapping[str, Any]], column: str) -> list[AddedFile]:
    """The files of new rows that a commit added: see `changes`."""
    adds = [action["add"] for action in commit if action.get("add")]
    return [_file(table, version, add, column) for add in adds if add["dataChange"]]


def commits(table: LakeTable) -> list[str]:
    """The paths of the commits that are still in the log of a table. Raises LakeError."""
    with table_errors(table.uri):
        logged = table.file_system().get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
    return [info.path for info in logged if info.path.endswith(".json") and info.path.count("/") == 1]


def first_commit(table: LakeTable, after: int) -> int | None:
    """The first version after this one whose commit is still in the log; None if there is none. Raises LakeError."""
    with table_errors(table.uri):
        following = table.folder.get_file_info(f"{LOG_FOLDER}/{after + 1:020d}.json")
    if following.type == pafs.FileType.File:
        return after + 1
    names = (path.rpartition("/")[2].removesuffix(".json") for path in commits(table))
    return min((int(name) for name in names if name.isdigit() and int(name) > after), default=None)


def actions(files: pafs.FileSystem, commit: str) -> list[Mapping[str, Any]]:
    """The actions of a commit."""
    return actions_in(_read(files, commit))


def actions_in(content: bytes) -> list[Mapping[str, Any]]:
    """The actions of a commit with this content."""
    return [json.loads(line) for line in content.splitlines() if line]


def _read(files: pafs.FileSystem, name: str) -> bytes:
    with files.open_input_stream(name) as stream:
        content: bytes = stream.read()
        return content


def _file(table: LakeTable, version: int, add: Mapping[str, Any], column: str) -> AddedFile:
    stats = json.loads(add.get("stats") or "{}")
    oldest, newest = ((stats.get(bound) or {}).get(column) for bound in ("minValues", "maxValues"))
    return AddedFile(
        version=version,
        path=unquote(add["path"]),
        partition=add["partitionValues"][table.partition_column],
        oldest=None if oldest is None else datetime.fromisoformat(oldest),
        newest=None if newest is None else datetime.fromisoformat(newest),
    )
