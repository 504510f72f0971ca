"""Files that are written separately from the transaction that adds them, so that many writers share one commit.

Readers ignore a file that no version lists. If its commit never happens, housekeeping deletes it as an orphan.
"""

import io
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.lake.tables.table import MOMENT, LakeTable, table_errors

FILES_AT_ONCE = 16
"""Number of files written in parallel: in a bucket each takes a while, mostly waiting."""

BOUNDED = (MOMENT, pa.bool_(), pa.float64(), pa.string())
"""Types of columns with bounds in a file's statistics: all types except binary and nested ones. If a column had no
bounds, the Delta library's Arrow dataset would compare with null, and skip the file."""

LONGEST_BOUND, LAST_CHARACTER = 32, "\U0010ffff"
"""Maximum length of a text in a file's statistics, which every reader of the log reads, and the greatest character. A
maximum that was cut ends with that character."""

Bound = bool | int | float | str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A durable file in a table's folder that no version lists yet: its path in the table, its partition's value, its
    row count, its size in bytes, and the known bounds of its columns (times in microseconds, texts cut). `nulls` has
    the null count of each column with nulls."""

    path: str
    partition: str
    rows: int
    size: int
    bounds: Mapping[str, tuple[Bound, Bound]] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def add_action(self, partition_column: str, at_us: int) -> AddAction:
        """Return the Delta action that adds the file in a transaction at this time."""
        stats: dict[str, Any] = {"numRecords": self.rows}
        if self.bounds or self.nulls:
            least, greatest = ({name: _said(bounds[end]) for name, bounds in self.bounds.items()} for end in (0, 1))
            stats |= {"minValues": least, "maxValues": greatest, "nullCount": self.nulls}
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values={partition_column: self.partition},
            modification_time=at_us // 1000,
            data_change=True,
            stats=orjson.dumps(stats).decode(),  # the Delta library misreads some escaped surrogate pairs
        )


class NewFiles:
    """Writes files of a table, and adds them in a separate transaction."""

    def __init__(self, table: LakeTable, schema: pa.Schema, clock: Clock) -> None:
        self._table = table
        self._schema = schema
        self._clock = clock

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows to durable files, one per value of the table's partition, without adding them to a version. Raises
        LakeFull, LakeUnwritable, LakeUnreachable."""
        table, written = self._table, list[NewFile]()
        table.check()
        parts = list(_by_partition(rows, table.partition_column))
        with table_errors(table.uri), ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="files") as pool:
            # A single file needs no thread: the allocator keeps memory for each new thread.
            write = map if len(parts) == 1 else pool.map
            written += write(lambda part: self._write(*part), parts)
        table.make_files_durable(file.path for file in written)
        return written

    def _write(self, partition: str, rows: pa.Table) -> NewFile:
        table, folder = self._table, f"{self._table.partition_column}={partition}"
        path, content = f"{folder}/part-{uuid.uuid4().hex}.parquet", _as_parquet(rows)
        table.folder.create_dir(folder, recursive=True)
        with table.folder.open_output_stream(path) as out:
            out.write(content)
        return NewFile(path, partition, len(rows), len(content), _bounds(rows), _nulls(rows))

    def add(self, files: Sequence[NewFile], says: Mapping[str, str]) -> None:
        """Add files in one transaction with the metadata `says`. On return the transaction is durable, and every reader
        sees all rows. Creates a missing table, and adds missing columns.

        Raises LakeFull, LakeUnwritable, LakeUnreachable, TableConflict. Then readers see none of the rows, or all of
        them if only the response was lost.
        """
        if files:
            at_us, column = to_us(self._clock.now()), self._table.partition_column
            self._table.add([file.add_action(column, at_us) for file in files], self._schema, says)


def _by_partition(rows: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield each value of a column, in order, with its rows without that column."""
    for value in sorted(pc.unique(rows[column]).to_pylist()):
        yield value, rows.filter(pc.equal(rows[column], value)).drop_columns(column)


def _bounds(rows: pa.Table) -> dict[str, tuple[Bound, Bound]]:
    found = dict[str, tuple[Bound, Bound]]()
    for column in rows.schema:
        if column.type in BOUNDED:
            values = rows[column.name]
            bounds = pc.min_max(values.cast(pa.int64()) if column.type == MOMENT else values)
            least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
            if isinstance(least, str):
                found[column.name] = least[:LONGEST_BOUND], _above(greatest)
            elif least is not None and math.isfinite(least) and math.isfinite(greatest):
                found[column.name] = least, greatest
    return found


def _above(text: str) -> str:
    """Shorten a text to an upper bound: not less than `text`, and rarely longer than LONGEST_BOUND + 1."""
    cut = next((at for at in range(LONGEST_BOUND, len(text)) if text[at] != LAST_CHARACTER), len(text))
    return text if cut == len(text) else text[:cut] + LAST_CHARACTER


def _nulls(rows: pa.Table) -> dict[str, int]:
    columns = [column for column in rows.schema if not pa.types.is_nested(column.type)]
    return {column.name: found for column in columns if (found := rows[column.name].null_count)}


def _as_parquet(rows: pa.Table) -> memoryview:
    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd", store_schema=False)
    return content.getbuffer()


def _said(bound: Bound) -> bool | float | str:
    """Return a bound in the form that statistics use. All whole numbers are times."""
    if type(bound) is int:
        return from_us(bound).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return bound
