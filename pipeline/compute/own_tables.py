"""Computes windows of a custom table: reads its input as a frame, and writes its rows to the lake."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.compute.copies import without_landed_copies
from tidemark.pipeline.compute.replacement import ReplacedWindows, WindowBatch, WrittenFiles, replace_windows
from tidemark.pipeline.compute.table_definition import TableDefinition, Windows
from tidemark.pipeline.errors import TableFailed, TidemarkError
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles
from tidemark.pipeline.lake.tables.windowed import PARTITION, OwnTable, stored_schema
from tidemark.pipeline.quality.due_windows import Inputs
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.frames import arrow_schema, moment, spark_schema
from tidemark.pipeline.windows import Window, runs_of_neighbours

START, END = "window_start", "window_end"
"""The columns with the bounds of the window whose input a heartbeat is, besides the window's key in `window`."""

RAISED = re.compile(r"[A-Za-z_.]*(Error|Exception)\b")
MOST_SAID = 500
"""Maximum length of a quoted error, in characters."""

FIX_FILE = "Fix its file: the next run reads it again"
FIX_FUNCTION = "Fix the function: it is read again when the code location is loaded again"


@dataclass(frozen=True, slots=True)
class OwnBatch(WindowBatch):
    """The input of a custom table's windows: a `WindowBatch`, the table's definition, the table, and its inputs.

    `inputs` is read before the heartbeats are listed. If `heartbeat_diffs` is recomputed in between, the window counts
    as derived from the earlier input, and is recomputed. It never counts as newer than it is.
    """

    definition: TableDefinition
    table: OwnTable
    inputs: Inputs


def compute_own(batch: OwnBatch, windows: Sequence[Window]) -> ReplacedWindows:
    """Compute windows of the table, which may have gaps between them, and replace them in the lake.

    Guarantee: readers see the old or the new rows of each window, never a mix. Raises WindowNotClosed, before anything
    is read; ExecutorsUnable and WindowExpired, before anything is written; TableFailed, if the table's function or SQL
    fails, or returns rows that the lake cannot hold; LakeError.
    """
    lookback, write, note = batch.definition.lookback, partial(_write, batch), partial(_note, batch)
    with naming_what_lacks():
        return replace_windows(batch, (batch.table,), windows, lookback, write, note)


def _note(batch: OwnBatch, windows: Sequence[Window]) -> Mapping[str, Any]:
    """Return the table's part of a run's manifest."""
    definition = batch.definition
    return {"table": definition.name, "version": definition.version, "inputs": _inputs(batch, windows)}


def _inputs(batch: OwnBatch, windows: Sequence[Window]) -> dict[str, str]:
    return {window.key: batch.inputs.digest(window) for window in windows}


def _write(batch: OwnBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
    definition = batch.definition
    with _failing(definition):
        for stretch in runs_of_neighbours(windows):
            input_rows = input_of(_read(batch, files, stretch), stretch, definition.lookback)
            rows = definition(input_rows, Windows(tuple(stretch), definition.lookback))
            batch.table.prepare(checked_schema(definition, rows), definition.version, _inputs(batch, windows))
            by_window = _of_windows(rows, stretch).repartition(PARTITION).write.mode("append").partitionBy(PARTITION)
            by_window.parquet(batch.table.folder_of(run))
    return (None,)


def _of_windows(rows: DataFrame, windows: Sequence[Window]) -> DataFrame:
    """Return the rows with a check: when Spark computes a row of any other window, it raises."""
    window = F.col(PARTITION)
    of_none = F.concat(F.lit("a row belongs to none of the computed windows: "), F.coalesce(window, F.lit("null")))
    is_of_one = window.isin([each.key for each in windows])
    return rows.withColumn(PARTITION, F.when(is_of_one, window).otherwise(F.raise_error(of_none)))


def _read(batch: OwnBatch, files: HeartbeatFiles, windows: Sequence[Window]) -> DataFrame:
    """Return the heartbeats that are input of these contiguous windows, without copies. A column that a file lacks
    reads as null."""
    columns = spark_schema(column for column in batch.heartbeats.schema if column.name != EVENT_HOUR)
    start, end = windows[0].start - batch.definition.lookback, windows[-1].end
    reached = files.between(start, end)
    if not reached.files:
        return batch.spark.createDataFrame([], columns)
    landed = batch.spark.read.schema(columns).parquet(*reached.paths)
    once = without_landed_copies(landed, reached, batch.heartbeats.storage_options, start, windows)
    return once.where((F.col("event_time") >= moment(start)) & (F.col("event_time") < moment(end)))


def input_of(heartbeats: DataFrame, windows: Sequence[Window], lookback: timedelta) -> DataFrame:
    """Return each heartbeat once per window whose input it is, that is, with its event time in
    `[window_start - lookback, window_end)`. Assumption: the windows are contiguous."""
    start, end = windows[0].start, windows[-1].end
    length_us, lookback_us = duration_us(end - start) // len(windows), duration_us(lookback)
    since_us = F.unix_micros("event_time") - F.lit(to_us(start))
    first = F.greatest(_whole(since_us, length_us), F.lit(0))
    last = F.least(_whole(since_us + F.lit(lookback_us), length_us), F.lit(len(windows) - 1))
    number = F.explode(F.sequence(first, last)) if lookback_us else first
    keys = F.array(*(F.lit(window.key) for window in windows))
    start_us = F.lit(to_us(start)) + F.col("number") * F.lit(length_us)
    return heartbeats.select("*", number.alias("number")).select(
        F.get(keys, F.col("number")).alias(PARTITION),
        F.timestamp_micros(start_us).alias(START),
        F.timestamp_micros(start_us + F.lit(length_us)).alias(END),
        *heartbeats.columns,
    )


def _whole(microseconds: Column, length_us: int) -> Column:
    """Return the exact number of whole lengths, rounded down."""
    return ((microseconds - F.pmod(microseconds, F.lit(length_us))) / F.lit(length_us)).cast("int")


def checked_schema(definition: TableDefinition, rows: DataFrame) -> pa.Schema:
    """Return the table's columns, all nullable. Raises TableFailed if the lake cannot hold them."""
    if not hasattr(rows, "schema"):
        raise TableFailed(f"the table {definition.name} is a {type(rows).__name__}; return a DataFrame")
    names = [name.lower() for name in rows.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    absent = [name for name in (PARTITION, *definition.key) if name not in rows.columns]
    wrong = None
    if twice:
        wrong = f"has the column {twice[0]} twice"
    elif absent:
        wrong = f"has no column {absent[0]}, only {', '.join(rows.columns)}: add it to the last select"
    elif len(names) == 1:
        wrong = f"has no column beside {PARTITION}"
    elif not isinstance(rows.schema[PARTITION].dataType, T.StringType):
        wrong = f"has a column {PARTITION} that is not text; take the heartbeats' own"
    if wrong:
        raise TableFailed(f"the table {definition.name} {wrong}")
    schema = arrow_schema(rows.schema)
    return stored_schema(pa.schema([column.with_nullable(True) for column in schema]))


@contextmanager
def _failing(definition: TableDefinition) -> Iterator[None]:
    """Raise TableFailed for any error in the table's function or SQL, on the driver or on Spark's executors."""
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        fix = FIX_FILE if definition.file else FIX_FUNCTION
        raise TableFailed(
            f"the table {definition.name} cannot be computed: {_said(error)}. Nothing of it was committed, and no "
            f"other table is affected. {fix}, and its windows are then computed automatically"
        ) from error


def _said(error: Exception) -> str:
    """Return an error's first line and, if a Python worker raised it, the line that names the error there. At most
    MOST_SAID characters."""
    first, *more = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    raised = [line for line in more if RAISED.match(line)]
    return "; ".join([f"{type(error).__name__}: {first}", *raised[:1]])[:MOST_SAID]
