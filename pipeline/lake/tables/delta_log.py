"""A Delta table's own log: which files of new rows each commit added."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from pipeline.errors import ObjectMissing
from pipeline.lake.store.read_ahead import read_ahead
from pipeline.lake.tables.table import LakeTable, table_errors


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows: the version that added it, its path within the table, its partition, and the least and the
    greatest time in it (None: its statistics do not say). `newest` may be cut to the millisecond."""

    version: int
    path: str
    partition: str
    oldest: datetime | None
    newest: datetime | None


def added_files(table: LakeTable, after: int, through: int, column: str = "") -> list[AddedFile]:
    """The files of new rows that the versions `after + 1` to `through` added, in order of the versions.

    A compaction adds no new rows, so its files are left out. `column` names the time whose range each file has. Raises
    ObjectMissing if one of the commits is gone from the log, which is cleaned up after checkpoints, or LakeError.
    """
    files = table.file_system()

    def read(version: int) -> list[AddedFile]:
        name = f"_delta_log/{version:020d}.json"
        gone = ObjectMissing(f"{table.uri}/{name} is gone: what it added is not known")
        with table_errors(table.uri, lambda _: gone), files.open_input_stream(name) as stream:
            actions = [json.loads(line) for line in stream.read().splitlines() if line]
        adds = (action["add"] for action in actions if action.get("add"))
        return [_file(table, version, add, column) for add in adds if add["dataChange"]]

    return [file for _, of_commit in read_ahead(read, range(after + 1, through + 1)) for file in of_commit]


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
