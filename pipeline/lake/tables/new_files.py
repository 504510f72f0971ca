"""Files that are written apart from the transaction that adds them: many writers, one commit.

A file that no version lists is nothing to a reader. If its commit never comes, housekeeping deletes it as an orphan.
"""

import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.lake.tables.table import MOMENT, LakeTable, table_errors


@dataclass(frozen=True, slots=True)
class NewFile:
    """A durable file in a table's folder that no version lists yet: its path in the table, the value of its partition,
    its rows, its size in bytes, and the least and the greatest of each column of times, in microseconds."""

    path: str
    partition: str
    rows: int
    size: int
    times_us: Mapping[str, tuple[int, int]]

    def add_action(self, partition_column: str, at_us: int) -> AddAction:
        """How a transaction at this time adds it."""
        least, greatest = ({name: _text(bounds[end]) for name, bounds in self.times_us.items()} for end in (0, 1))
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values={partition_column: self.partition},
            modification_time=at_us // 1000,
            data_change=True,
            stats=json.dumps({"numRecords": self.rows, "minValues": least, "maxValues": greatest}),
        )


class NewFiles:
    """A table as those see it who write its files apart from the transaction that adds them."""

    def __init__(self, table: LakeTable, schema: pa.Schema, clock: Clock) -> None:
        self._table = table
        self._schema = schema
        self._clock = clock

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows into files, one for each value of the table's partition, and make them durable. No version lists
        them yet. Raises LakeFull, LakeUnwritable, LakeUnreachable."""
        table, written = self._table, list[NewFile]()
        with table_errors(table.uri):
            for partition, of_it in _by_partition(rows, table.partition_column):
                folder = f"{table.partition_column}={partition}"
                path, content = f"{folder}/part-{uuid.uuid4().hex}.parquet", _as_parquet(of_it)
                if table.is_on_disk:
                    table.folder.create_dir(folder, recursive=True)
                with table.folder.open_output_stream(path) as out:
                    out.write(content)
                written.append(NewFile(path, partition, len(of_it), len(content), _times_us(of_it)))
        table.make_files_durable(file.path for file in written)
        return written

    def add(self, files: Sequence[NewFile], says: Mapping[str, str]) -> None:
        """Add files in one transaction, which notes what it `says`. When it returns, that is durable and every reader
        sees all of the rows. A table that is not there is created, and columns that it lacks are added.

        Raises LakeFull, LakeUnwritable, LakeUnreachable, TableConflict. Then no reader sees a row, or the answer was
        lost and every reader sees all of them.
        """
        if files:
            at_us, column = to_us(self._clock.now()), self._table.partition_column
            self._table.add([file.add_action(column, at_us) for file in files], self._schema, says)


def _by_partition(rows: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each value of a column, without it, in the order of the values."""
    if not len(rows):
        return
    ordered = rows.sort_by(column)
    values = ordered[column].combine_chunks()
    runs = pc.run_end_encode(values)
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, ordered.slice(start, end - start).drop_columns(column)
        start = end


def _times_us(rows: pa.Table) -> dict[str, tuple[int, int]]:
    found = {}
    for field in rows.schema:
        if field.type == MOMENT:
            bounds = pc.min_max(rows[field.name].cast(pa.int64()))
            if bounds["min"].is_valid:
                found[field.name] = bounds["min"].as_py(), bounds["max"].as_py()
    return found


def _as_parquet(rows: pa.Table) -> memoryview:
    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd", store_schema=False)
    return content.getbuffer()


def _text(moment_us: int) -> str:
    return from_us(moment_us).isoformat(timespec="microseconds").replace("+00:00", "Z")
