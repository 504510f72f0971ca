"""Writes a table's data files before the transaction that adds them, so that many writers can share one transaction.

Readers ignore a file until a transaction adds it. If no transaction adds the file, housekeeping deletes it.
"""

import math
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from tidemark.pipeline.clock import HOUR_US, Clock, iso, to_us
from tidemark.pipeline.errors import TableConflict
from tidemark.pipeline.lake.store.notes import parquet_bytes
from tidemark.pipeline.lake.tables.table import MOMENT, LakeTable, table_errors

APPEND_RETRIES = 50
"""Number of times that the Delta library retries an append."""

ADDED_WITHIN_US = 12 * HOUR_US
"""Maximum age of a file when it is added, in microseconds. Housekeeping deletes only older files as orphans."""

FILES_AT_ONCE, ON_DISK_AT_ONCE = 16, 2
"""FILES_AT_ONCE is the number of files written in parallel to a bucket, where a write mostly waits for the response.
ON_DISK_AT_ONCE is the same for a disk, where more threads would only wait for the interpreter's lock."""

BOUNDED = (MOMENT, pa.bool_(), pa.float64(), pa.string())
"""Types of the columns whose minimum and maximum are written to a file's statistics. A column needs both or neither: if
it had only one, Arrow would compare with null, and wrongly skip the file. Columns of other types have neither."""

LONGEST_BOUND, LAST_CHARACTER = 32, "\U0010ffff"
"""Strings in a file's statistics are cut to LONGEST_BOUND characters, because every reader of the table loads all
statistics. LAST_CHARACTER, the greatest character, is appended to a cut maximum, so that it stays an upper bound."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A durable file in a table's folder that no transaction has added yet. `rows` is its number of rows, and `size`
    its size in bytes.

    `stats` has Delta's statistics of the file, except the number of rows. `written_us` is its write time in
    microseconds.
    """

    path: str
    partition: str
    rows: int
    size: int
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    written_us: int = 0

    def action(self, partition_column: str, at_us: int, *, data_change: bool) -> AddAction:
        stats = {"numRecords": self.rows, **self.stats}
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values={partition_column: self.partition} if partition_column else {},
            modification_time=at_us // 1000,
            data_change=data_change,
            stats=orjson.dumps(stats).decode(),  # the Delta library misreads some escaped surrogate pairs
        )


class NewFiles:
    """Writes data files of a table (`write`), and later adds them to the table in one transaction (`add`)."""

    def __init__(self, table: LakeTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows to new, durable files, one file per partition. Readers do not see the rows until `add`. Raises
        LakeFull, LakeUnwritable, LakeUnreachable, and InvalidSettings (see `LakeTable.check`)."""
        table, written = self._table, list[NewFile]()
        table.check()
        parts = [("", rows)]
        if column := table.partition_column:
            values = sorted(pc.unique(rows[column]).to_pylist())
            parts = [(value, rows.filter(pc.equal(rows[column], value)).drop_columns(column)) for value in values]
        at_once = FILES_AT_ONCE if table.in_bucket else ON_DISK_AT_ONCE
        with table_errors(table.uri), ThreadPoolExecutor(at_once, thread_name_prefix="files") as pool:
            # A single file is written without a thread, because the allocator retains memory for each new thread.
            write = map if len(parts) == 1 else pool.map
            written += write(lambda part: self._write(*part), parts)
        table.make_files_durable(file.path for file in written)
        return written

    def write_part(self, partition: str, rows: pa.Table) -> NewFile:
        """Write rows of one partition, without the partition column, to a new, durable file. Raises LakeFull,
        LakeUnwritable and LakeUnreachable."""
        with table_errors(self._table.uri):
            written = self._write(partition, rows)
        self._table.make_files_durable([written.path])
        return written

    def _write(self, partition: str, rows: pa.Table) -> NewFile:
        table, column = self._table, self._table.partition_column
        folder, content = f"{column}={partition}/" if column else "", parquet_bytes(rows, store_schema=False)
        path = f"{folder}part-{uuid.uuid4().hex}.parquet"
        table.folder.create_dir(folder or "/", recursive=True)
        with table.folder.open_output_stream(path) as out:
            out.write(content)
        return NewFile(path, partition, len(rows), len(content), _stats(rows), to_us(self._clock.now()))

    def add(self, files: Sequence[NewFile], metadata: Mapping[str, str]) -> None:
        """Add files to the table in one transaction with this metadata. Creates the table if it does not exist, and
        adds missing columns. When the call returns, the transaction is durable, and readers see all rows.

        Raises InvalidSettings, and LakeErrors such as LakeFull and TableConflict. After an error, readers see none of
        the rows, unless only the response to the transaction was lost or the sync after it failed: then they see all.
        In either case, the messages are redelivered and land again, and the computation of windows drops the copies.
        """
        if not files:
            return
        table, at_us = self._table, to_us(self._clock.now())
        refuse_old(table, min(file.written_us for file in files), at_us)
        for attempt in table.attempts():  # one fails if another process creates the table or changes its schema
            with suppress(TableConflict):
                opened = table.complete(table.schema, as_open=attempt == 0)
                table.transact(opened, files, at_us, metadata, retries=APPEND_RETRIES)
                return


def refuse_old(table: LakeTable, since_us: int, now_us: int) -> None:
    """Raise TableConflict if housekeeping may have deleted files written since `since_us` as orphans. This can happen
    if the process slept after it wrote the files and before it added them."""
    if (age_us := now_us - since_us) > ADDED_WITHIN_US:
        raise TableConflict(
            f"files of {table.uri} were written {age_us // HOUR_US} h ago, so housekeeping may have deleted them as "
            "orphans; nothing was added, and the work will be repeated"
        )


def _stats(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """Return Delta's statistics of the rows: the number of nulls of each column with nulls, and both bounds of each
    column of the BOUNDED types, unless a bound is null or not finite. Long strings are cut."""
    least, greatest = dict[str, Any](), dict[str, Any]()
    for column in rows.schema:
        if column.type in BOUNDED:
            bounds = pc.min_max(rows[column.name])
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
            if isinstance(low, datetime):
                low, high = iso(low, exact=True), iso(high, exact=True)
            elif isinstance(low, str):
                low, high = low[:LONGEST_BOUND], _above(high)
            elif low is None or not (math.isfinite(low) and math.isfinite(high)):
                continue
            least[column.name], greatest[column.name] = low, high
    columns = [column for column in rows.schema if not pa.types.is_nested(column.type)]
    nulls = {column.name: found for column in columns if (found := rows[column.name].null_count)}
    return {"minValues": least, "maxValues": greatest, "nullCount": nulls}


def _above(text: str) -> str:
    cut = next((at for at in range(LONGEST_BOUND, len(text)) if text[at] != LAST_CHARACTER), len(text))
    return text if cut == len(text) else text[:cut] + LAST_CHARACTER
