"""A table of one's own, by window. What made a window's rows is in the paths of its files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import Schema

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.table import LakeTable, data_files
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable, run_of

FOLDER = "tables"
"""The folder of these tables in the lake."""

MADE = "made"
"""Begins the last folder of a file's path: `made=<version>.<input>`."""


@dataclass(frozen=True, slots=True)
class Made:
    """What made a window: the version of the table's definition, a digest of the computed windows of `heartbeat_diffs`
    over its input, and the run. With the number of its rows."""

    version: str
    input: str
    run: str = ""
    rows: int = 0

    @property
    def folder(self) -> str:
        """What stands in the path."""
        return f"{self.version}.{self.input}"


class OwnTable(WindowedTable):
    """The table. Its columns are those that its runs have written."""

    def __init__(self, table: LakeTable, objects: ObjectStore, files: pafs.FileSystem, clock: Clock, name: str) -> None:
        super().__init__(table, objects, files, pa.schema([pa.field(PARTITION, pa.string())]), clock)
        self.name = name
        self._making: Mapping[str, Made] = {}

    def made(self) -> dict[str, Made]:
        """What made each computed window, by its key. Raises LakeError."""
        found = dict[str, Made]()
        for file in data_files(self.table.current(), PARTITION):
            made = file.path.rpartition("/")[0].rpartition(f"/{MADE}=")[2]
            version, _, of = made.partition(".")
            others = found[file.partition].rows if file.partition in found else 0
            found[file.partition] = Made(version, of, run_of(file.path), file.rows + others)
        return found

    def read(self, windows: Iterable[str], where: pc.Expression | None = None) -> pa.Table:
        """The rows of these windows, by their keys, or those of them that `where` selects. Raises LakeError."""
        self.schema = self._stored() or self.schema
        return super().read(windows, where)

    def twice(self, windows: Iterable[str], key: Sequence[str]) -> int:
        """How many rows of these windows have the key of another row of their window. Raises LakeError."""
        rows = self.read(windows).select([PARTITION, *key])
        return len(rows) - len(rows.group_by([PARTITION, *key], use_threads=False).aggregate([]))

    def prepare(self, schema: pa.Schema, making: Mapping[str, Made]) -> None:
        """Note what a run is about to commit: its columns, and what makes each window. Raises LakeError if a column has
        another type in the lake."""
        wanted, stored = stored_schema(schema), self._stored()
        for field in wanted:
            there = None if stored is None or field.name not in stored.names else stored.field(field.name).type
            if there not in (None, field.type):
                raise LakeError(
                    f"the column {field.name} of {self.name} is {there} in the lake, and would be {field.type} now: "
                    "cast it in the last select, or give the column or the table another name. Nothing was written"
                )
        self.schema, self._making = wanted, making

    def place_of_nothing(self, run: str, window: str) -> str:
        """The folder of the file that stands for a window without rows."""
        return f"{self.place_of(run, window)}/{MADE}={self._making[window].folder}"

    def _stored(self) -> pa.Schema | None:
        table = self.table.current()
        return None if table is None else pa.schema(table.schema().to_arrow())


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as a Delta table gives them back. Raises an error of the library for a type that it does not have."""
    return pa.schema(Schema.from_arrow(schema).to_arrow())
