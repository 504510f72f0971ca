"""Files that are written apart from the transaction that adds them: many writers, one commit.

A file that no version lists is nothing to a reader. If its commit never comes, housekeeping deletes it as an orphan.
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
"""Files that are written side by side: in a bucket each takes a while, most of it waiting."""

BOUNDED = (MOMENT, pa.bool_(), pa.float64(), pa.string())
"""Types of columns whose bounds are said of a file. It must be all of them but binary and nested ones: where a column
has none, the Delta library's data set for Arrow compares with null, and passes the file over."""

LONGEST_BOUND, LAST_CHARACTER = 32, "\U0010ffff"
"""Characters of a text in statistics, which every reader of the log reads. A greatest one that is cut ends with the
greatest character."""

Bound = bool | int | float | str


@dataclass(frozen=True, slots=True)
class NewFile:
    """A durable file in a table's folder that no version lists yet: its path in the table, the value of its partition,
    its rows, its size in bytes, and bounds of what each column holds, if they are known: times in microseconds, and
    texts cut. `nulls`
    counts those of each column that has any."""

    path: str
    partition: str
    rows: int
    size: int
    bounds: Mapping[str, tuple[Bound, Bound]] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def add_action(self, partition_column: str, at_us: int) -> AddAction:
        """The action by which a transaction at this time adds the file."""
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
            stats=orjson.dumps(stats).decode(),  # the Delta library reads some escaped pairs of surrogates wrongly
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
        table.check()
        parts = list(_by_partition(rows, table.partition_column))
        with table_errors(table.uri), ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="files") as pool:
            # One file needs no thread: a new one for each has the allocator keep memory for each.
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
    """A text that is not below this one, and not much longer than LONGEST_BOUND."""
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
    """As statistics have it: the only whole numbers are times."""
    if type(bound) is int:
        return from_us(bound).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return bound
