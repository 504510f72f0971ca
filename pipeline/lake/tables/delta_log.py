"""A Delta table's own log, commit by commit: which files were added when, and whether they brought anything new."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from pipeline.errors import ObjectMissing
from pipeline.lake.tables.table import LakeTable, table_errors

READERS = 8
"""Commits that are read at the same time: on a bucket, each is a request of its own."""

COMMITS_AT_ONCE = 1000
"""On a bucket some ten seconds, so that a sensor's tick has time for one such stretch."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows: the version that it came with, its path within the table, its partition, and between which
    times the column asked for lies (None: the file does not say). `newest` may be cut to the millisecond."""

    version: int
    path: str
    partition: str
    oldest: datetime | None
    newest: datetime | None


class DeltaLog:
    """The commits of one table. What was read is kept, since a commit never changes."""

    def __init__(self, table: LakeTable, column: str | None = None) -> None:
        """`column` is the time whose range is told of each file."""
        self._table = table
        self._column = column
        self._known: dict[int, Sequence[AddedFile]] = {}
        self._opened = table.opened

    def files(self) -> pafs.FileSystem:
        """The table's folder, as Arrow reads from it: files that no version holds any more as well."""
        return pafs.PyFileSystem(DeltaStorageHandler(self._table.uri, self._table.storage_options))

    def added(self, after: int, through: int) -> Iterator[AddedFile]:
        """The files of new rows that came with the versions `after + 1` to `through`, in order of the versions.

        What a compaction wrote brings nothing new and is passed over. Raises ObjectMissing where one of the commits
        was removed from the log, as the library does a month after a checkpoint; LakeError where it cannot be read.
        """
        for _ in self.read(after, through):
            pass
        for version in range(after + 1, through + 1):
            yield from self._known[version]

    def read(self, after: int, through: int) -> Iterator[int]:
        """Read the commits that `added` needs, so many at a time, and say in between how many are left. Raises what it
        raises; what was read by then is kept, and who begins again goes on from there."""
        if self._opened != self._table.opened:  # another table may be in its place
            self._known.clear()
            self._opened = self._table.opened
        absent = [version for version in range(after + 1, through + 1) if version not in self._known]
        for first in range(0, len(absent), COMMITS_AT_ONCE):
            some = absent[first : first + COMMITS_AT_ONCE]
            with ThreadPoolExecutor(READERS, thread_name_prefix="delta-log") as pool:
                for version, files in zip(some, pool.map(self._read, some), strict=True):
                    self._known[version] = files
            if left := len(absent) - first - len(some):
                yield left

    def forget(self, through: int) -> None:
        """Keep nothing of the versions up to this one: nobody asks for them again."""
        for version in [version for version in self._known if version <= through]:
            del self._known[version]

    def _read(self, version: int) -> Sequence[AddedFile]:
        name = f"_delta_log/{version:020d}.json"
        with table_errors(self._table.uri):
            try:
                with self.files().open_input_stream(name) as stream:
                    lines = stream.read().splitlines()
            except FileNotFoundError as error:
                raise ObjectMissing(f"{self._table.uri}/{name} is gone: nobody can say what it added") from error
        actions = (json.loads(line).get("add") for line in lines if line)
        return [self._file(version, add) for add in actions if add is not None and add["dataChange"]]

    def _file(self, version: int, add: Mapping[str, Any]) -> AddedFile:
        stats = json.loads(add.get("stats") or "{}")
        return AddedFile(
            version=version,
            path=unquote(add["path"]),
            partition=add["partitionValues"][self._table.partition_column],
            oldest=self._time(stats.get("minValues")),
            newest=self._time(stats.get("maxValues")),
        )

    def _time(self, values: Mapping[str, str] | None) -> datetime | None:
        text = None if values is None or self._column is None else values.get(self._column)
        return None if text is None else datetime.fromisoformat(text)
