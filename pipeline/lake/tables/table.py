"""The base of the lake's Delta tables: opening, appending, selecting files, and readable errors.

A table that does not exist yet counts as empty; its first append creates it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError
from deltalake.table import FilterConjunctionType
from deltalake.transaction import AddAction, RemoveAction

from tidemark.pipeline import version
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.messages import MOMENT as MOMENT
from tidemark.pipeline.errors import (
    CorruptObject,
    LakeError,
    LakeUnreachable,
    NewerFormat,
    ObjectMissing,
    TableConflict,
)
from tidemark.pipeline.lake.store.admission import Admission
from tidemark.pipeline.lake.store.disk import storage_error
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER, CommitSync
from tidemark.pipeline.version import format_of, marks, refuse_newer
from tidemark.pipeline.watermark.histogram import Ints

APPEND_RETRIES = 50
"""Number of the library's retries of an append. Appends conflict only with the table's creation and schema changes."""

SCHEMA_CHANGES = 20
"""Maximum number of concurrent schema changes that an append survives; each reader makes at most one."""

CHECKPOINTS: Mapping[str, str] = {"delta.checkpointInterval": "30"}
"""Number of commits between checkpoints. Each process that opens the table reads a checkpoint and the commits since, in
a bucket with one call per commit: 15 on average, 50 with the library's default. A shorter interval would rewrite the
checkpoints of long tables often."""

SCANNED_ROWS = 5_000
"""Number of rows per batch of a scan, which reads a few batches ahead: payloads may be large."""

DAY_FORMAT = "%Y-%m-%d"
"""The format of partition names in a table partitioned by day."""

CUT = timedelta(milliseconds=1)
"""Maximum time that the Delta library cuts from a file's maximum time in statistics: it truncates to milliseconds."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path relative to the table, row count, size in bytes, partition value, time of addition,
    and the range of its event times, both ends included. None means that the file's statistics lack the bound."""

    path: str
    rows: int
    size: int
    partition: str
    added_at: datetime
    oldest: datetime | None
    newest: datetime | None

    def may_have(self, start: datetime, end: datetime) -> bool:
        """True if the file may hold event times in `[start, end]`."""
        return (self.oldest is None or self.oldest <= end) and (self.newest is None or self.newest >= start)


class DamagedFile(CorruptObject):
    """A file of a table exists and cannot be read, or is gone."""

    def __init__(self, uri: str, path: str, why: object) -> None:
        super().__init__(f"{uri}/{path} is damaged ({why}); `tidemark repair` says what needs it, and what to do")
        self.path = path


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The location of a table: its address, the options that `deltalake` takes with it, its folder as an Arrow file
    system (which may not exist yet), and the lake's formats."""

    uri: str
    storage_options: dict[str, str]
    folder: pafs.FileSystem
    admission: Admission


class LakeTable:
    """A Delta table, partitioned by one text column or, if `partition_column` is empty, by none. Not thread-safe. Its
    methods release the GIL while they wait for a bucket's response.

    Its properties carry the mark of the newest version of tidemark that has written it. Opening it raises NewerFormat
    if that version's format is newer than this one's, or if the lake does not admit this version.
    """

    def __init__(self, place: TablePlace, partition_column: str) -> None:
        self.place = place
        self.uri, self.folder, self.storage_options = place.uri, place.folder, place.storage_options
        self.partition_column = partition_column
        self.properties = CHECKPOINTS
        """The properties set when the table is created, or by the next write if any is missing."""
        self._admission = place.admission
        self._table: DeltaTable | None = None
        self._commit: tuple[int, int] | None = None
        self._sync = None if "://" in self.uri else CommitSync(Path(self.uri))
        """Syncs a table on disk. A bucket needs no sync."""

    def current(self) -> DeltaTable | None:
        """Return the table at its newest version; None if it was never written, or is gone. Checks the file of the last
        known commit, so that a deleted or recreated table is noticed. While nothing is committed, it requests only that
        file and the file of the next commit."""
        self._admission.admit()
        with table_errors(self.uri):
            held = self._updated()
            if held is not None:
                return self._readable(held)
            self._table = None
            try:
                table = self._readable(DeltaTable(self.uri, storage_options=self.storage_options))
            except TableNotFoundError:
                return None
            self._table, (self._commit,) = table, self._commits(table.version())
            if self._sync is not None:
                self._sync.opened_at(table.version())
            return table

    def _readable(self, table: DeltaTable) -> DeltaTable:
        refuse_newer(self.uri, table.metadata().configuration)
        return table

    def _updated(self) -> DeltaTable | None:
        """Return the open table at its newest version; None if no table is open, or if it was replaced."""
        table = self._table
        if table is None or self._commit is None:
            return None
        number = table.version()
        held, following = self._commits(number, number + 1)
        if held != self._commit:
            return None
        if following is None:
            return table
        try:
            table.update_incremental()
        except DeltaError:  # the table may have been lost since: then the held state is invalid
            return None
        self._commit = following if table.version() == number + 1 else self._commits(table.version())[0]
        return table

    def _open(self) -> DeltaTable | None:
        """Return the open table as last seen; None if no table is open, if it was replaced, or if it has an older
        format mark."""
        if self._table is None or self._commit is None:
            return None
        if format_of(self._table.metadata().configuration) < version.FORMAT:
            return None
        with table_errors(self.uri):
            return self._table if self._commits(self._table.version()) == [self._commit] else None

    def _commits(self, *versions: int) -> list[tuple[int, int] | None]:
        """Return the size and the modification time of each commit's file; None if it does not exist."""
        found = self.folder.get_file_info([f"{LOG_FOLDER}/{number:020d}.json" for number in versions])
        return [None if info.type == pafs.FileType.NotFound else (info.size, info.mtime_ns) for info in found]

    def at(self, version: int) -> DeltaTable:
        """Return the table at a version, regardless of later writes and compactions. Raises ObjectMissing if that
        version can no longer be read."""
        try:
            with table_errors(self.uri):
                return self._readable(DeltaTable(self.uri, version=version, storage_options=self.storage_options))
        except (LakeUnreachable, NewerFormat):
            raise
        except LakeError as error:
            raise ObjectMissing(f"version {version} of {self.uri} cannot be read any more: {error}") from error

    @contextmanager
    def naming_damage(self, path: str) -> Iterator[None]:
        """Turn Arrow's errors about a file into DamagedFile. Raises OSError instead if the storage fails, or the file
        is gone."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            with self.folder.open_input_stream(path) as opened:
                opened.read()
            raise DamagedFile(self.uri, path, error) from error

    def file_rows(self, path: str, schema: pa.Schema, wanted: pc.Expression | None = None) -> pa.Table:
        """Return these columns of the wanted rows of a file, cast to the schema's types. Without the cast, Arrow could
        not filter the text views that the library's `delete` writes. Raises pa.ArrowException, OSError."""
        with self.folder.open_input_file(path) as opened:  # reading by path costs one more request
            return pq.read_table(opened, schema=schema, columns=schema.names, filters=wanted, use_threads=False)

    def rows(
        self,
        table: DeltaTable,
        columns: Sequence[str],
        wanted: pc.Expression | None = None,
        partitions: Sequence[str] | None = None,
        damaged: dict[str, str] | None = None,
    ) -> pa.Table:
        """Return these columns of the wanted rows of a version, from some partitions or all (None). Files whose
        statistics rule out such rows are not opened. With `damaged`, leaves out damaged and missing files, and adds
        their paths and partitions to it. Without `damaged`, raises DamagedFile for the first of them. Raises
        LakeError."""
        pruned: FilterConjunctionType = [(self.partition_column, "in", [*partitions])] if partitions else []
        with table_errors(self.uri):
            files = table.to_pyarrow_dataset(filesystem=self.folder, file_pruning_predicate=pruned or None)
            with suppress(pa.ArrowException, OSError):
                return files.to_table(list(columns), filter=wanted, use_threads=False)
            from pyarrow.dataset import get_partition_keys  # imports pandas

            read = [files.schema.empty_table().select([name for name in columns if name in files.schema.names])]
            for file in files.get_fragments(wanted):
                try:
                    with self.naming_damage(file.path):
                        read.append(file.to_table(files.schema, list(columns), filter=wanted, use_threads=False))
                except (DamagedFile, FileNotFoundError) as error:
                    if damaged is None:
                        gone = DamagedFile(self.uri, file.path, "it is gone")
                        raise error if isinstance(error, DamagedFile) else gone from error
                    damaged[file.path] = get_partition_keys(file.partition_expression)[self.partition_column]
            return pa.concat_tables(read)

    def published_between(
        self,
        start: datetime,
        end: datetime,
        columns: Sequence[str] = ("message_id", "publish_time"),
        damaged: dict[str, str] | None = None,
    ) -> pa.Table | None:
        """Return these columns of each row published in `[start, end)`; None if the table was never written. `start`
        and `end` are whole seconds. `damaged` is as for `rows`."""
        table, published = self.current(), pc.field("publish_time")
        wanted = (published >= pa.scalar(start, MOMENT)) & (published < pa.scalar(end, MOMENT))
        return None if table is None else self.rows(table, columns, wanted, damaged=damaged)

    def scanned(
        self, columns: Sequence[str], wanted: pc.Expression, partition: str | None = None
    ) -> Iterator[pa.Table]:
        """Yield these columns of the wanted rows of the newest version, at most SCANNED_ROWS at a time, from one
        partition or all (None). Yields nothing if the table was never written. Files whose statistics rule out such
        rows are not opened."""
        table = self.current()
        if table is None:
            return
        with table_errors(self.uri):
            pruned = None if partition is None else [(self.partition_column, "=", partition)]
            files = table.to_pyarrow_dataset(filesystem=self.folder, file_pruning_predicate=pruned)
            scanner = files.scanner(
                list(columns),
                filter=wanted,
                batch_size=SCANNED_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            )
            for batch in scanner.to_batches():
                if len(batch):
                    yield pa.Table.from_batches([batch])

    def landed(self) -> pa.Table:
        """Return the newest version's files, the last landed first. The columns are those of `listed`, the row count
        (`rows`), and the landing times of the `first` and the `last` row (the epoch if unknown)."""
        table = self.current()
        files = pa.table({}) if table is None else listed(table)
        if "max.landed_at" not in files.column_names:
            columns = {"path": pa.string(), "first": MOMENT, "last": MOMENT, "rows": pa.int64()}
            return pa.schema(columns).empty_table()
        for name, bound in (("first", "min"), ("last", "max")):
            files = files.append_column(name, pc.fill_null(files[f"{bound}.landed_at"].cast(MOMENT), from_us(0)))
        files = files.append_column("rows", pc.fill_null(files["num_records"], 0))
        return files.sort_by([("last", "descending")])

    def landed_since(self, since: datetime) -> tuple[int, list[str]]:
        """Estimate from the files' statistics how many rows landed since a moment. Returns the number, and the paths of
        their files, the newest first. A file's rows are assumed to be evenly spread over its landing times."""
        files = self.landed()
        files = files.filter(pc.greater_equal(files["last"], pa.scalar(since, MOMENT)))
        first_us, last_us, since_us = microseconds(files["first"]), microseconds(files["last"]), to_us(since)
        share = np.clip((last_us - since_us + 1) / (last_us - first_us + 1), 0, 1)
        rows = round(float((files["rows"].to_numpy() * share).sum()))
        return rows, list(map(unquote, files["path"].to_pylist()))

    def days(self, since: datetime | None = None) -> list[str]:
        """Return the days, in order, that may have rows since a moment. For a table partitioned by day."""
        days = {file.partition for file in data_files(self.current(), self.partition_column)}
        return sorted(day for day in days if day >= first_day(since))

    def check(self) -> None:
        """Raise LakeError if the table cannot hold the rows that the settings describe."""

    def add(self, files: Sequence[AddAction], schema: pa.Schema, says: Mapping[str, str]) -> None:
        """Add durable files in the table's folder, in one transaction with the metadata `says`. On return, every reader
        sees them.

        Raises LakeFull, LakeUnwritable, LakeUnreachable, TableConflict. Then no files were added or, if only the
        response was lost, all were. In that case a redelivery repeats the rows, and the micro-batch drops the copies.
        """
        self._admission.claim()
        properties = CommitProperties(max_commit_retries=APPEND_RETRIES, custom_metadata=dict(says))
        for changes in range(SCHEMA_CHANGES):
            try:
                held = self.complete(schema, as_open=changes == 0)
                self.transact(held, files, properties, PostCommitHookProperties(cleanup_expired_logs=False))
                break
            except TableConflict:
                if changes == SCHEMA_CHANGES - 1:
                    raise
        with table_errors(self.uri):
            held.update_incremental()  # the transaction does not update the open table's version
            (self._commit,) = self._commits(held.version())
        self.make_durable()

    def transact(
        self,
        table: DeltaTable,
        files: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
        hooks: PostCommitHookProperties | None = None,
    ) -> None:
        """Add and remove files in one transaction. Raises TableConflict, LakeError."""
        with table_errors(self.uri):
            table.create_write_transaction(
                [*files],
                mode="append",
                schema=table.schema(),
                partition_by=[self.partition_column],
                commit_properties=properties,
                post_commithook_properties=hooks,
            )

    def complete(self, schema: pa.Schema, *, as_open: bool = False) -> DeltaTable:
        """Add the columns of the schema that the table lacks, and return the table. With `as_open`, uses the open table
        if it is still valid; otherwise calls `created`."""
        table = (self._open() if as_open else None) or self.created(schema)
        self.check()
        there = {column.name for column in table.schema().fields}
        absent: list[Field] = [column for column in Schema.from_arrow(schema).fields if column.name not in there]
        if absent:
            with table_errors(self.uri):
                table.alter.add_columns(absent)
                (self._commit,) = self._commits(table.version())
        return table

    def created(self, schema: pa.Schema) -> DeltaTable:
        """Return the table at its newest version. Creates it with this schema if it does not exist, and marks it with
        at least this version's format. Raises TableConflict, NewerFormat, LakeError."""
        self._admission.claim()
        table = self.current()
        if table is None:
            with table_errors(self.uri):
                self._create(schema)
            table = self.current()
        if table is None:
            raise TableConflict(f"{self.uri} vanished while it was written; run again")
        properties = table.metadata().configuration
        if format_of(properties) < version.FORMAT or not self.properties.keys() <= properties.keys():
            with table_errors(self.uri):
                table.alter.set_table_properties({**self.properties, **marks()}, raise_if_not_exists=False)
                (self._commit,) = self._commits(table.version())
        return table

    def _create(self, schema: pa.Schema) -> None:
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="error",
                partition_by=[self.partition_column] if self.partition_column else None,
                configuration={**self.properties, **marks()},
                raise_if_key_not_exists=False,  # the mark is not one of Delta's own properties
                storage_options=self.storage_options,
                # With retries, the loser of a race to create the table would create it a second time.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:  # another program may have created it first
            if self.current() is None:
                raise

    def make_durable(self) -> None:
        """Make every commit since the last call durable, including its files. Raises LakeFull, LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_commits()

    def make_files_durable(self, paths: Iterable[str]) -> None:
        """Make files durable before a commit names them, given their paths in the table. Raises LakeFull, LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_files(paths)

    def file_location(self, path: str) -> str:
        """Return the address of a file of the table, in the form for Spark and Arrow."""
        return f"{self.uri}/{path}"


def first_day(since: datetime | None) -> str:
    """Return the first day that may have rows since a moment; empty for None. For a table partitioned by day."""
    return "" if since is None else since.strftime(DAY_FORMAT)


def rows_of(columns: Mapping[str, Sequence[Any] | pa.Array], schema: pa.Schema) -> pa.Table:
    """Build a table from columns by name, with the schema's order and types. Columns that are not given are left
    out."""
    given = pa.schema([column for column in schema if column.name in columns])
    arrays = [
        values if isinstance(values := columns[column.name], pa.Array) else pa.array(values, column.type)
        for column in given
    ]
    return pa.table(arrays, given)


def microseconds(times: pa.ChunkedArray) -> Ints:
    """Return times as microseconds since the epoch."""
    values: Ints = times.cast(pa.int64()).combine_chunks().to_numpy()
    return values


def listed(table: DeltaTable) -> pa.Table:
    """Return the files of a version, one row per file, with their partitions, statistics and range of event times (as
    in DataFile)."""
    files = pa.table(table.get_add_actions(flatten=True))
    oldest, newest = (
        files[name].cast(MOMENT) if name in files.column_names else pa.chunked_array([pa.nulls(len(files), MOMENT)])
        for name in ("min.event_time", "max.event_time")
    )
    # The library truncates a file's maximum time to the millisecond.
    newest = pc.add(newest, pa.scalar(CUT, pa.duration("us")))
    return files.append_column("oldest", oldest).append_column("newest", newest)


def data_files(table: DeltaTable | None, partition_column: str) -> list[DataFile]:
    """Return the files of a table's version; none if the table was never written."""
    return [] if table is None else as_data_files(listed(table), partition_column)


def as_data_files(files: pa.Table, partition_column: str) -> list[DataFile]:
    """Return rows of `listed` as DataFiles."""
    names = ("path", "num_records", "size_bytes", f"partition.{partition_column}", "modification_time")
    columns = (files[name].to_pylist() for name in names)
    bounds = (
        files[name].cast(pa.int64()).to_pylist() for name in ("oldest", "newest")
    )  # the library is slow with times
    return [
        DataFile(path, rows or 0, size, partition, from_us(added_ms * 1000), _moment(oldest_us), _moment(newest_us))
        for path, rows, size, partition, added_ms, oldest_us, newest_us in zip(*columns, *bounds, strict=True)
    ]


def _moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else from_us(time_us)


@contextmanager
def table_errors(uri: str, gone: Callable[[OSError], LakeError] | None = None) -> Iterator[None]:
    """Translate the Delta library's errors into LakeErrors that say what to do. `gone` makes the error for a missing
    file."""
    try:
        yield
    except CommitFailedError as error:
        raise TableConflict(f"a commit to {uri} repeatedly lost against others: {error}") from error
    except SchemaMismatchError as error:
        raise LakeError(
            f"{uri} has a column whose type differs from [message.fields] ({error}); give the field another name, or "
            "restore its kind"
        ) from error
    except pa.ArrowInvalid as error:
        raise CorruptObject(f"{uri} has a damaged file: {error}; run `tidemark repair`, which names it") from error
    except (DeltaError, OSError) as error:
        if gone is not None and isinstance(error, FileNotFoundError):
            raise gone(error) from error
        raise storage_error(uri, str(error)) from error
