"""Cuts a range of windows into slices of time, and computes each slice in one Spark task.

A slice needs only the heartbeats of `[start - lookback, end)`, so Spark needs no shuffle. A task reads the files of
this range, computes diffs with Polars, and writes one file per window. For a custom table, a task only finds the copies
of heartbeats, so that Spark can drop them without a shuffle. The rows that Spark then computes are written by tasks,
too.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from math import ceil
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from tidemark.pipeline.compute.columns import NUMBER, DiffPlan, heartbeat_diffs, in_order, stream_status, without_copies
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.lake.store.address import scan_options
from tidemark.pipeline.lake.store.notes import parquet_bytes
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.diffs import STATUS, diff_schema
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, columns_read
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.windowed import PARTITION, RUNS_FOLDER
from tidemark.pipeline.windows import Window

ROWS_OF_A_SLICE = 1_200_000
"""Target number of rows per slice. A Python worker needs a few hundred megabytes for them."""

MOST_ROWS = 2 * ROWS_OF_A_SLICE
"""Maximum number of rows per slice, including its lookback. A larger slice is cut into parts by stream."""

HELD_BYTES = 64 << 20
"""Maximum size of the rows of a custom table that a task collects before it writes them, as Arrow holds them."""

OF_MANY_VALUES = {"event_time", "previous_event_time", "gap_seconds", "publish_time", "message_id"}
"""Columns that are written to Parquet without dictionary encoding, because they have too many distinct values."""

os.environ.setdefault("POLARS_NUM_READERS_PRE_INIT", "32")
"""Number of files that Polars opens in parallel. Its default is the number of cores plus 3, which is too few for the
many small files of a lake in a bucket."""

DIFFS, STATUSES = "diffs", "status"

ANSWER = pa.schema(
    {
        "unable": pa.string(),
        "table": pa.string(),
        "path": pa.string(),
        "window": pa.string(),
        "rows": pa.int64(),
        "size": pa.int64(),
    }
)
"""Schema of the rows that a task of `Work` or `Output` returns: one row per written file. If the executor cannot run
tidemark, the task returns a single row with the reason in `unable`."""


PLACE = ("_file", "_row")
"""The columns that identify a row of the table `heartbeats`: the last two parts of its file's path, and its row number
in the file, from 0."""

COPIES = pa.schema({"unable": pa.string(), "_file": pa.string(), "_row": pa.int64(), "_is_dropped": pa.bool_()})
"""Schema of the rows that a task of `Search` returns. A row identifies a heartbeat in the table `heartbeats`, unless
`unable` says why the executor cannot run tidemark. If `_is_dropped` is true, the heartbeat is a copy to drop. Otherwise
it is kept, and its `late` becomes false, because a copy of it landed in time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Contiguous windows, and the files that may contain their heartbeats. `since` is the start of the first window's
    lookback. If `parts` is more than 1, the slice covers only the streams of part number `part`, from 0."""

    windows: Sequence[Window]
    since: datetime
    paths: Sequence[str]
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Work:
    """The computation of diffs and stream status, as sent to each task. `diffs` and `status` are file systems rooted at
    the folders of the two tables."""

    run: str
    plan: DiffPlan
    slices: Sequence[Slice]
    storage_options: Mapping[str, str]
    diffs: pafs.FileSystem
    status: pafs.FileSystem

    def answers(self, one: Slice) -> Iterator[dict[str, Any]]:
        """Compute a slice, write its files, and yield one row of ANSWER per file.

        Each window gets a file in each table, even without rows. If the slice is cut by stream, only part 0 writes
        files without rows. Each attempt uses new file names. If an attempt is killed or superseded, its files are never
        committed and become orphans.
        """
        start, end = one.windows[0].start, one.windows[-1].end
        read = scan(one, self.plan.fields, self.storage_options).collect()
        diffs = heartbeat_diffs(read, self.plan, start, end)
        status = stream_status(diffs, read, self.plan, start, end)
        of_tables = {
            DIFFS: _as_contracted(diffs, diff_schema(self.plan.fields)),
            STATUSES: _as_contracted(status, STATUS),
        }
        files = (file for table, rows in of_tables.items() for file in _encoded(one, table, rows))
        for _, answer in read_ahead(self._write, files):  # in parallel, because a bucket responds slowly
            yield answer

    def _write(self, file: tuple[str, Window, int, bytes]) -> dict[str, Any]:
        table, window, rows, content = file
        files = self.diffs if table == DIFFS else self.status
        return {"table": table, **write_file(files, f"{RUNS_FOLDER}/{self.run}", window.key, rows, content)}


@dataclass(frozen=True, slots=True)
class Search:
    """The search for copies of heartbeats, as sent to each task. Copies have the same event time, so they are in the
    same slice. Most heartbeats have no copies, so the tasks return few rows."""

    slices: Sequence[Slice]
    fields: Mapping[str, FieldKind]
    storage_options: Mapping[str, str]

    def answers(self, one: Slice) -> Iterator[dict[str, Any]]:
        """Yield one row of COPIES per heartbeat to drop, or to keep with `late` set to false."""
        moment = pl.struct("stream_id", "event_time").hash()
        moments = scan(one, {}, self.storage_options).select(moment).collect().to_series()
        if moments.n_unique() == len(moments):  # the usual case, for which two columns suffice
            return
        of_files = [
            scan(replace(one, paths=[path]), self.fields, self.storage_options, "_row").select(
                pl.exclude("_row"), pl.lit(place_of(path)).alias("_file"), "_row"
            )
            for path in one.paths
        ]
        read = pl.concat(of_files).collect()
        shared = in_order(read.filter(moment.is_duplicated()))  # a few hash collisions are harmless
        kept = without_copies(shared.lazy()).collect()
        dropped = shared.join(kept, on=PLACE, how="anti")
        in_time = shared.filter("late").join(kept.filter(~pl.col("late")), on=PLACE, how="semi")
        yield from dropped.select(*PLACE, _is_dropped=True).to_dicts()
        yield from in_time.select(*PLACE, _is_dropped=False).to_dicts()


@dataclass(frozen=True, slots=True)
class Output:
    """The files of a custom table's rows, as sent to each task. `files` is a file system rooted at the table's folder,
    and `folder` is the run's folder in it."""

    files: pafs.FileSystem
    folder: str

    def answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        """Write the rows of a task, with the window of each in the column PARTITION. Yield one row of ANSWER per file.
        A window gets another file after each HELD_BYTES of rows."""
        held, size = list[pa.RecordBatch](), 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= HELD_BYTES:
                yield from self._written(pa.Table.from_batches(held))
                held, size = [], 0
        if held:
            yield from self._written(pa.Table.from_batches(held))

    def _written(self, rows: pa.Table) -> Iterator[dict[str, Any]]:
        windows = rows[PARTITION]
        of_windows = ((key, rows.filter(pc.equal(windows, key))) for key in windows.unique().to_pylist())
        for _, answer in read_ahead(lambda part: self.write(*part), of_windows):
            yield answer

    def write(self, window: str, rows: pa.Table) -> dict[str, Any]:
        """Write rows of one window, and return a row of ANSWER. The file does not contain the column PARTITION."""
        content = parquet_bytes(rows.drop_columns(PARTITION), store_schema=False)
        return write_file(self.files, self.folder, window, len(rows), content)


def place_of(path: str) -> str:
    """Return the last two parts of a file's path: its partition and its name. Together they are unique in the table."""
    return "/".join(path.split("/")[-2:])


def cut(windows: Sequence[Window], files: HeartbeatFiles, lookback: timedelta, cores: int) -> list[Slice]:
    """Cut contiguous windows into slices with about equal row counts.

    - There is at most one slice per window. Within this limit, there are usually at least `cores` slices, and at most
      about ROWS_OF_A_SLICE rows per slice.
    - A slice with more than MOST_ROWS rows is cut into parts by stream. Each part reads the same files.
    """
    ends = [windows[0].start, *(window.end for window in windows)]
    files = files.between(ends[0] - lookback, ends[-1])
    before = files.rows_before(ends)
    slices = min(len(windows), max(cores, ceil((before[-1] - before[0]) / ROWS_OF_A_SLICE)))
    shares = np.searchsorted(before, np.linspace(before[0], before[-1], slices + 1)[1:-1])
    bounds = sorted({0, len(windows), *shares.tolist()})
    made = []
    for first, last in pairwise(bounds):
        own = windows[first:last]
        low, high = own[0].start - lookback, own[-1].end
        reached = files.between(low, high)
        rows = np.ptp(reached.rows_before([low, high]))
        parts = ceil(rows / ROWS_OF_A_SLICE) if rows > MOST_ROWS else 1
        made += [Slice(own, low, reached.paths, part, parts) for part in range(parts)]
    return made


def _as_contracted(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """Select the columns of `schema`, in its order and with its types. NUMBER replaces the column of window keys."""
    columns = pl.DataFrame(schema.empty_table()).schema
    return rows.select(*(pl.col(name).cast(kind) for name, kind in columns.items() if name != PARTITION), NUMBER)


def scan(
    one: Slice, fields: Mapping[str, FieldKind], storage_options: Mapping[str, str], row: str | None = None
) -> pl.LazyFrame:
    """Return a lazy frame of the heartbeats of the slice and of its lookback, read from the slice's files. A field that
    a file lacks is null. `row` names an additional column for the row number within the file."""
    schema = pl.DataFrame(columns_read(fields).empty_table()).schema
    if not one.paths:
        return pl.LazyFrame(schema=schema)
    found = pl.scan_parquet(
        list(one.paths),
        schema=schema,
        missing_columns="insert",
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
        row_index_name=row,
        storage_options=scan_options(storage_options),
        credential_provider=None,
    ).filter(pl.col("event_time").is_between(one.since, one.windows[-1].end, closed="left"))
    if one.parts > 1:
        found = found.filter(pl.col("stream_id").map_batches(lambda names: _is_of(one, names), pl.Boolean))
    return found


def _is_of(one: Slice, streams: pl.Series) -> pl.Series:
    """Return a mask that is true for the streams in the slice's part. A checksum of a stream's name decides its
    part."""
    names = streams.unique()
    ours = [name for name in names.to_list() if crc32(name.encode()) % one.parts == one.part]
    return streams.is_in(pl.Series(ours, dtype=pl.String).implode())


def _encoded(one: Slice, table: str, rows: pl.DataFrame) -> Iterator[tuple[str, Window, int, bytes]]:
    """Yield the table, the window, the number of rows and the content of each file to write. The column NUMBER of
    `rows` contains the index of each row's window."""
    by_window = rows.partition_by(NUMBER, include_key=False, as_dict=True)
    for number, window in enumerate(one.windows):
        if (number,) in by_window or one.part == 0:
            found = by_window.get((number,), rows.clear().drop(NUMBER))
            yield table, window, len(found), _as_parquet(found)


def write_file(files: pafs.FileSystem, folder: str, window: str, rows: int, content: bytes) -> dict[str, Any]:
    """Write a file for a window, given by its key, under a new name in a run's folder, and return its row of ANSWER."""
    place = f"{folder}/{PARTITION}={window}"
    files.create_dir(place, recursive=True)
    path = f"{place}/{uuid.uuid4().hex}.parquet"
    with files.open_output_stream(path) as out:
        out.write(content)
    return {"path": path, "window": window, "rows": rows, "size": len(content)}


def new_file(answer: Mapping[str, Any]) -> NewFile:
    """Return the file that a row of ANSWER describes."""
    return NewFile(*(answer[name] for name in ("path", "window", "rows", "size")))


def _as_parquet(rows: pl.DataFrame) -> bytes:
    few_values = [name for name in rows.columns if name not in OF_MANY_VALUES]
    columns = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    return parquet_bytes(columns, use_dictionary=few_values, store_schema=False)
