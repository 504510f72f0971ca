"""Computes windows of a custom table: passes heartbeats to its definition, and writes the rows to the lake."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.compute.micro_batch import WindowBatch, WrittenFiles
from tidemark.pipeline.compute.slices import ANSWER, COPIES, PLACE, Output, Search, cut, new_file, place_of
from tidemark.pipeline.compute.table_definition import TableDefinition, Windows
from tidemark.pipeline.errors import CorruptObject, TableFailed, TidemarkError
from tidemark.pipeline.lake.failures import reason_of
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.table import table_errors
from tidemark.pipeline.lake.tables.windowed import PARTITION, RUNS_FOLDER, OwnTable, stored_schema
from tidemark.pipeline.spark.connector import explaining_missing_connector
from tidemark.pipeline.spark.executors import answers_to, explaining_damage, write_rows
from tidemark.pipeline.spark.frames import arrow_schema, moment, spark_schema
from tidemark.pipeline.spark.session import cores_of
from tidemark.pipeline.windows import Window, runs_of_neighbours

ROWS_OF_ONE_TASK = 300_000
"""Maximum number of input rows for which a table's SQL runs in one task. With more rows, several tasks are faster. A
Python function always runs in several tasks, because its work per row is unknown."""

COPIES_SENT = 100_000
"""Maximum number of copies that are sent to Spark with the query. Each takes about 85 bytes in this process, and
several times as much in Spark's driver."""

READING = {"parquet.filter.dictionary.enabled": "false"}
"""Options for Spark's reader of heartbeats. It skips row groups by their statistics. By default, it also compares each
event time in their dictionaries, which skips hardly any more."""

MERGED = 2
"""If the files have more rows than this times the rows that the windows read, they are merged files of whole hours.
Spark then gets the range of times as constants, by which it skips row groups. Otherwise it gets none: it would generate
and compile its code again for each range, which takes longer than reading some rows more."""

START, END = "window_start", "window_end"
"""Input columns with the start and the end of the window that reads the row."""

UNREADABLE = re.compile(r'[tT]ype":"(void|variant)"')
"""Matches, anywhere in a column's type as JSON, the Spark types that Delta stores but most readers cannot read."""

MOST_SAID = 500
"""Maximum length of a quoted error, in characters."""

LOST = (Py4JError, Py4JNetworkError, SparkConnectGrpcException)
"""The errors that PySpark raises if Spark does not answer. Errors of a query are subclasses of them."""

FIX_FILE = "Fix the table's file: the next run reads it again"
FIX_FUNCTION = "Fix the table's function, and restart Dagster's code server"


@dataclass(frozen=True, slots=True)
class OwnBatch(WindowBatch):
    """The input for computing windows of a custom table.

    `digests` contains a digest of each window's input, by the window's key. The digests must be read before the
    heartbeats are listed. If `heartbeat_diffs` is recomputed in between, the recorded digest is outdated, and the
    window is therefore computed again later.
    """

    tables: tuple[OwnTable]
    definition: TableDefinition
    digests: Mapping[str, str]

    @property
    def lookback(self) -> timedelta:
        return self.definition.lookback

    def note(self, windows: Sequence[Window]) -> Mapping[str, Any]:
        """Return the fields that a custom table adds to a run's manifest: its name and version, and each window's input
        digest."""
        return {"table": self.definition.name, "version": self.definition.version, "inputs": self._of(windows)}

    def write(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
        """Call the table's definition once per range of contiguous windows, and write the rows that it returns.

        Raises ExecutorsUnable, ToolMissing, CorruptObject if a file of heartbeats is damaged, TableFailed if the
        table's definition fails or returns rows that the lake cannot store, and the errors of `OwnTable.prepare`.
        """
        definition, (table,), schema, written = self.definition, self.tables, pa.schema([]), list[NewFile]()
        with explaining_missing_connector():
            for stretch in runs_of_neighbours(windows):
                reached = files.between(stretch[0].start - self.lookback, stretch[-1].end)
                # With one partition, Spark needs no shuffle, whatever the table groups by. In a bucket, several tasks
                # are faster, because each file takes a few requests.
                is_small = definition.is_sql and reached.rows <= ROWS_OF_ONE_TASK and not table.table.in_bucket
                landed = self._landed(stretch, reached, run)
                input_rows = input_of(landed.coalesce(1) if is_small else landed, stretch, self.lookback)
                with _failing(definition), explaining_damage():
                    rows = definition(input_rows, Windows(tuple(stretch), self.lookback))
                    schema = checked_schema(definition, rows, schema)
                    table.prepare(schema, definition.version, self._of(windows))
                    rows = _of_windows(rows, stretch)
                    by_window = rows.coalesce(1) if is_small else rows.repartition(PARTITION)
                    output = Output(table.files, table.place_of_run(run))
                    written += map(new_file, write_rows(by_window, output, ANSWER).to_pylist())
        without_rows = {window.key for window in windows}.difference(file.partition for file in written)
        with table_errors(table.table.uri):
            empty = read_ahead(lambda key: output.write(key, table.schema.empty_table()), sorted(without_rows))
            return ([*written, *(new_file(answer) for _, answer in empty)],)

    def _of(self, windows: Sequence[Window]) -> dict[str, str]:
        return {window.key: self.digests[window.key] for window in windows}

    def _landed(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> DataFrame:
        """Return the heartbeats that these contiguous windows read, without copies, and perhaps further ones of the
        same files. A heartbeat is late only if all its copies are late. A column that a file lacks is null."""
        columns = spark_schema(column for column in self.heartbeats.schema if column.name != EVENT_HOUR)
        late = F.coalesce("late", F.lit(True))
        if not files.files:
            return self.spark.createDataFrame([], columns).withColumn("late", late)  # same nullability as below
        copies, landed = self._copies(windows, files, run), self._read(files.paths, columns)
        if copies is not None:
            file, row = F.substring_index("_metadata.file_path", "/", -2), F.col("_metadata.row_index")
            placed = landed.select("*", file.alias("_file"), row.alias("_row")).join(copies, list(PLACE), "left")
            is_dropped = F.col("_is_dropped")
            is_kept, late = is_dropped.isNull() | ~is_dropped, late & is_dropped.isNull()
            landed = placed.where(is_kept)
        landed = landed.withColumn("late", late).select(*columns.names)
        start, end, event_time = windows[0].start - self.lookback, windows[-1].end, F.col("event_time")
        if files.rows <= MERGED * np.ptp(files.rows_before([start, end])):
            return landed
        return landed.where((event_time >= moment(start)) & (event_time < moment(end)))

    def _read(self, paths: Sequence[str], columns: T.StructType) -> DataFrame:
        """Return the rows of these files of heartbeats. Raises CorruptObject if a file is gone.

        Spark gets the names of the files and of their folders, and lists each folder once. If it got paths, it would
        make several requests for each."""
        folders, names = zip(*(_literal(path).rsplit("/", 1) for path in paths), strict=True)
        reader, wanted = self.spark.read.options(**READING).schema(columns), set(map(place_of, paths))
        with explaining_damage():
            rows = reader.parquet(*sorted(set(folders)), pathGlobFilter=f"{{{','.join(names)}}}")
            listed = {place_of(unquote(path)) for path in rows.inputFiles()}
        if gone := sorted(wanted - listed):
            raise CorruptObject(f"heartbeats lack a file: run `tidemark repair`. Nothing was committed ({gone[0]})")
        # Another tool may have given files in several folders one name, and the table may no longer have all of them.
        return rows if listed == wanted else reader.parquet(*map(_literal, paths))

    def _copies(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> DataFrame | None:
        """Find the copies among the heartbeats that these contiguous windows read. Return None if there are none. If
        they exceed COPIES_SENT, write them to a file in the run's folder. No table lists it. Raises ExecutorsUnable.

        Each returned row identifies a row of the table `heartbeats` by its file and its row number in that file. If
        `_is_dropped` is true, drop the heartbeat. If it is false, keep the heartbeat and set its `late` to false,
        because a copy of it landed in time.
        """
        start = windows[0].start
        before = [Window(start - self.lookback, start)] if self.lookback else []
        slices = cut([*before, *windows], files, timedelta(0), cores_of(self.spark))
        search = Search(slices, self.heartbeats.fields, self.heartbeats.storage_options)
        found = answers_to(self.spark, search, COPIES).select([*PLACE, "_is_dropped"])
        if len(found) <= COPIES_SENT:
            return self.spark.createDataFrame(found) if len(found) else None
        (table,), folder = self.tables, f"{RUNS_FOLDER}/{run}"
        path = f"{folder}/copies-{windows[0].key}.parquet"
        with table_errors(table.table.uri):
            table.files.create_dir(folder, recursive=True)
            pq.write_table(found, path, filesystem=table.files)
        return self.spark.read.schema(spark_schema(found.schema)).parquet(_literal(f"{table.table.uri}/{path}"))


def _literal(path: str) -> str:
    """Escape the characters of a path that Spark would interpret as a pattern, or as the end of one."""
    return re.sub(r"([][{}*?\\,])", r"\\\1", path)


def _of_windows(rows: DataFrame, windows: Sequence[Window]) -> DataFrame:
    """Add a check to `rows`: Spark fails if a row belongs to a window that is not in `windows`."""
    window = F.col(PARTITION)
    of_none = F.concat(F.lit("a row belongs to none of the computed windows: "), F.coalesce(window, F.lit("null")))
    is_of_one = window.isin([each.key for each in windows])
    return rows.withColumn(PARTITION, F.when(is_of_one, window).otherwise(F.raise_error(of_none)))


def input_of(heartbeats: DataFrame, windows: Sequence[Window], lookback: timedelta) -> DataFrame:
    """Pair each heartbeat with each window that reads it, one row per pair. A window reads the heartbeats with an event
    time in `[start - lookback, end)`. The windows must be contiguous."""
    start, end = windows[0].start, windows[-1].end
    span_us, lookback_us = duration_us(end - start), duration_us(lookback)
    length_us, event_us = span_us // len(windows), F.unix_micros("event_time")
    # Spark writes a constant number into the code that it generates, and compiles this code again for each start. It
    # passes a constant array to the code instead. The index 0 is the sign bit of the event time: Spark would replace an
    # element at a constant index by its value.
    start_us = F.get(F.array(F.lit(to_us(start))), F.shiftright(event_us, 63).cast("int"))
    since_us = event_us - start_us
    first = F.greatest(_whole(since_us, length_us), F.lit(0))
    last = F.least(_whole(since_us + F.lit(lookback_us), length_us), F.lit(len(windows) - 1))
    number = F.explode(F.sequence(first, last)) if lookback_us else first
    keys = F.array(*(F.lit(window.key) for window in windows))
    read = heartbeats.where((since_us >= F.lit(-lookback_us)) & (since_us < F.lit(span_us)))
    window_us = start_us + F.col("_number").cast("bigint") * F.lit(length_us)
    paired = read.select("*", number.alias("_number")).select(
        F.get(keys, F.col("_number")).alias(PARTITION),
        F.timestamp_micros(window_us).alias(START),
        F.timestamp_micros(window_us + F.lit(length_us)).alias(END),
        "*",
    )
    return paired.drop("_number")


def _whole(microseconds: Column, length_us: int) -> Column:
    """Divide by `length_us` and round down, without floating-point error."""
    return ((microseconds - F.pmod(microseconds, F.lit(length_us))) / F.lit(length_us)).cast("int")


def checked_schema(definition: TableDefinition, rows: object, earlier: pa.Schema) -> pa.Schema:
    """Return a schema with the columns of `rows` and of `earlier`, the schema of the run's earlier windows. Raises
    TableFailed if the lake cannot store such rows, or if a column has a different type in `earlier`."""
    if not isinstance(rows, DataFrame):
        returned = f"the table {definition.name} cannot be computed: its function returned a {type(rows).__name__}"
        raise TableFailed(f"{returned}; it must return a Spark DataFrame")
    names = [name.lower() for name in (*rows.columns, *(set(earlier.names) - set(rows.columns)))]
    twice = sorted({name for name in names if names.count(name) > 1})
    absent = [name for name in (PARTITION, *definition.key) if name not in rows.columns]
    unreadable = [column.name for column in rows.schema if UNREADABLE.search(column.json())]
    wrong = None
    if twice:
        wrong = f"has the column {twice[0]} twice"
    elif absent:
        wrong = f"has no column {absent[0]}, only {', '.join(rows.columns)}: add it to the last select"
        wrong += "" if absent[0] == PARTITION else ", or take it out of the key"
    elif len(rows.columns) == 1:
        wrong = f"has no column except {PARTITION}"
    elif not isinstance(rows.schema[PARTITION].dataType, T.StringType):
        wrong = f"has a column {PARTITION} that is not text; select the heartbeats' column unchanged"
    elif unreadable:
        wrong = f"has the column {unreadable[0]} of the type VOID or VARIANT, which most readers cannot read: cast it"
    if wrong:
        raise TableFailed(f"the table {definition.name} {wrong}")
    schema = stored_schema(arrow_schema(rows.schema))
    for column in schema:
        if column.name in earlier.names and (other := earlier.field(column.name).type) != column.type:
            raise TableFailed(
                f"the table {definition.name} has the column {column.name} as {other} in some windows, but as "
                f"{column.type} in others: cast it in the last select. Nothing was committed"
            )
    return pa.unify_schemas([earlier, schema])


@contextmanager
def _failing(definition: TableDefinition) -> Iterator[None]:
    """Turn errors of the table's definition into TableFailed, but not tidemark's own errors or lost connections."""
    try:
        yield
    except (TidemarkError, ConnectionError):
        raise
    except Exception as error:
        if type(error) in LOST:
            raise
        fix = FIX_FILE if definition.file else FIX_FUNCTION
        raise TableFailed(
            f"the table {definition.name} cannot be computed: {reason_of(error, MOST_SAID)}. Nothing was committed "
            f"to it, and no other table is affected. {fix}, and the table's windows are then computed automatically"
        ) from error
