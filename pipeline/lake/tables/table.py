"""The base of the lake's Delta tables: opening, appending, choosing files, and readable errors.

A table that does not exist yet is an empty one; its first append creates it.
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
from tidemark.pipeline.lake.store.storage_errors import storage_error
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER, CommitSync
from tidemark.pipeline.version import format_of, marks, refuse_newer
from tidemark.pipeline.watermark.histogram import Ints

APPEND_RETRIES = 50
"""Appends conflict with nothing but the table's creation and a change of its schema: the library tries again."""

SCHEMA_CHANGES = 20
"""Bounds the changes by others that an append outlasts; each reader makes one at most."""

CHECKPOINTS: Mapping[str, str] = {"delta.checkpointInterval": "30"}
"""Commits from one checkpoint to the next. Each process that opens the table reads one and the commits since, in a
bucket with a call for each: 15 on average, 50 by the library's own interval. A shorter one would write the checkpoints
of long tables often."""

SCANNED_ROWS = 5_000
"""Rows that a scan holds at a time, with a few times as many read ahead: payloads may be large."""

DAY_FORMAT = "%Y-%m-%d"
"""The names of partitions of a table that is partitioned by the day."""

CUT = timedelta(milliseconds=1)
"""The most that the Delta library cuts from a file's greatest time in its statistics."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path relative to the table, its rows, its partition's value, when it was added, and the
    range of its event times, both ends included, by its statistics; None where these do not tell."""

    path: str
    rows: int
    size: int
    partition: str
    added_at: datetime
    oldest: datetime | None
    newest: datetime | None

    def may_have(self, start: datetime, end: datetime) -> bool:
        """Return whether the file may hold event times in `[start, end]`."""
        return (self.oldest is None or self.oldest <= end) and (self.newest is None or self.newest >= start)


class DamagedFile(CorruptObject):
    """A file of a table exists and cannot be read, or is gone."""

    def __init__(self, uri: str, path: str, why: object) -> None:
        super().__init__(f"{uri}/{path} is damaged ({why}); `tidemark repair` says what needs it, and what to do")
        self.path = path


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The place of a table: its address and the options that `deltalake` takes with it, its folder as Arrow reads and
    writes files there, whether or not it exists yet, and the lake's formats."""

    uri: str
    storage_options: dict[str, str]
    folder: pafs.FileSystem
    admission: Admission


class LakeTable:
    """One Delta table, partitioned by one text column, or by none (empty). Not shared between threads. No call of the
    methods here keeps Python's lock while it waits for a bucket's answer.

    Its properties carry the mark of the newest version that has written it. Whatever opens it raises NewerFormat if
    that version's format is newer than this one's, or if the lake does not admit this version.
    """

    def __init__(self, place: TablePlace, partition_column: str) -> None:
        self.place = place
        self.uri, self.folder, self.storage_options = place.uri, place.folder, place.storage_options
        self.partition_column = partition_column
        self.properties = CHECKPOINTS
        """The properties that the table is created with, or gets with the next write if it lacks one."""
        self._admission = place.admission
        self._table: DeltaTable | None = None
        self._commit: tuple[int, int] | None = None
        self._sync = None if "://" in self.uri else CommitSync(Path(self.uri))
        """Syncs a table on a disk. A bucket is durable by itself."""

    def current(self) -> DeltaTable | None:
        """The table at its newest version, or None if it was never written, or is gone. That it was deleted, or deleted
        and begun anew, is noticed: the file of the commit that is held is looked at. While nothing is committed, that
        and a look for the next commit are all that it asks for."""
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
        """The open table at its newest version; None if none is open, or if the table was replaced."""
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
        except DeltaError:  # it may have been lost since: then what is remembered of it means nothing
            return None
        self._commit = following if table.version() == number + 1 else self._commits(table.version())[0]
        return table

    def _open(self) -> DeltaTable | None:
        """The open table as it was last seen; None if none is open, if it was replaced, or if it has an older mark."""
        if self._table is None or self._commit is None:
            return None
        if format_of(self._table.metadata().configuration) < version.FORMAT:
            return None
        with table_errors(self.uri):
            return self._table if self._commits(self._table.version()) == [self._commit] else None

    def _commits(self, *versions: int) -> list[tuple[int, int] | None]:
        """The size of the file of each of these commits, and when it was written; None if it is not there."""
        found = self.folder.get_file_info([f"{LOG_FOLDER}/{number:020d}.json" for number in versions])
        return [None if info.type == pafs.FileType.NotFound else (info.size, info.mtime_ns) for info in found]

    def at(self, version: int) -> DeltaTable:
        """The table as it was at a version, whatever has been written or compacted since. Raises ObjectMissing if that
        cannot be read any more."""
        try:
            with table_errors(self.uri):
                return self._readable(DeltaTable(self.uri, version=version, storage_options=self.storage_options))
        except (LakeUnreachable, NewerFormat):
            raise
        except LakeError as error:
            raise ObjectMissing(f"version {version} of {self.uri} cannot be read any more: {error}") from error

    @contextmanager
    def naming_damage(self, path: str) -> Iterator[None]:
        """Turn what Arrow raises while it reads a file into DamagedFile. Where it is the storage that fails, or the
        file is gone, OSError is raised as it is."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            with self.folder.open_input_stream(path) as opened:
                opened.read()
            raise DamagedFile(self.uri, path, error) from error

    def rows(
        self,
        table: DeltaTable,
        columns: Sequence[str],
        wanted: pc.Expression | None = None,
        partitions: Sequence[str] | None = None,
        damaged: dict[str, str] | None = None,
    ) -> pa.Table:
        """Read these columns of the wanted rows of a version, of some partitions or of all. Files that hold none of
        them, by their statistics, are not opened. Those that are damaged or gone are noted in `damaged`, with their
        partitions, and left out; without it, raises DamagedFile, which names the first. Raises LakeError."""
        pruned: FilterConjunctionType = [(self.partition_column, "in", [*partitions])] if partitions else []
        with table_errors(self.uri):
            files = table.to_pyarrow_dataset(filesystem=self.folder, file_pruning_predicate=pruned or None)
            with suppress(pa.ArrowException, OSError):
                return files.to_table(list(columns), filter=wanted, use_threads=False)
            from pyarrow.dataset import get_partition_keys  # it loads pandas

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
        """Read these columns of each landing that was published in `[start, end)`, in whole seconds; None if the table
        was never written. `damaged` is as for `rows`."""
        table, published = self.current(), pc.field("publish_time")
        wanted = (published >= pa.scalar(start, MOMENT)) & (published < pa.scalar(end, MOMENT))
        return None if table is None else self.rows(table, columns, wanted, damaged=damaged)

    def scanned(
        self, columns: Sequence[str], wanted: pc.Expression, partition: str | None = None
    ) -> Iterator[pa.Table]:
        """These columns of the wanted rows of one version, at most SCANNED_ROWS at a time, of all partitions or of one;
        none if the table was never written. Files without such rows, by their statistics, are not opened."""
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
        """The newest version's files of landed rows, the last that landed first: their columns `rows`, and when the
        `first` and the `last` of these landed (long ago if that is not known), beside those of `listed`."""
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
        """About how many rows landed since a moment, and the paths of the files that hold them, the newest first: by
        their statistics. The rows of a file that holds earlier ones as well count evenly over its time."""
        files = self.landed()
        files = files.filter(pc.greater_equal(files["last"], pa.scalar(since, MOMENT)))
        first_us, last_us, since_us = microseconds(files["first"]), microseconds(files["last"]), to_us(since)
        share = np.clip((last_us - since_us + 1) / (last_us - first_us + 1), 0, 1)
        rows = round(float((files["rows"].to_numpy() * share).sum()))
        return rows, list(map(unquote, files["path"].to_pylist()))

    def days(self, since: datetime | None = None) -> list[str]:
        """The partitions of a table by the day that may have rows since a moment, in order."""
        days = {file.partition for file in data_files(self.current(), self.partition_column)}
        return sorted(day for day in days if day >= first_day(since))

    def check(self) -> None:
        """Raise LakeError where rows by the settings do not fit the table."""

    def add(self, files: Sequence[AddAction], schema: pa.Schema, says: Mapping[str, str]) -> None:
        """Add files that are durable in the table's folder, in one transaction, which notes what it `says`. When it
        returns, every reader sees them. Raises LakeFull, LakeUnwritable, LakeUnreachable, TableConflict; then nothing
        was added, or all was and the answer was lost, which a redelivery repeats and the micro-batch drops."""
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
            held.update_incremental()  # the transaction leaves the version at what it was
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
        """The table with every column of the schema: as it is open, if it is, or as `created` gives it."""
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
        """The table at its newest version, with the mark of this version's format or of a newer one that it can read;
        created with this schema if it is not there. Raises TableConflict, NewerFormat, LakeError."""
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
                raise_if_key_not_exists=False,  # the mark is none of Delta's own properties
                storage_options=self.storage_options,
                # With retries, the loser of a race to create the table would create it over again.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:  # another program may have created it first
            if self.current() is None:
                raise

    def make_durable(self) -> None:
        """Make every commit since the last call durable, with the files that it adds. Raises LakeFull, LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_commits()

    def make_files_durable(self, paths: Iterable[str]) -> None:
        """Make files durable before a commit names them, by their paths in the table. Raises LakeFull, LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_files(paths)

    def file_location(self, path: str) -> str:
        """The address of a file of the table, as Spark and Arrow name it."""
        return f"{self.uri}/{path}"


def first_day(since: datetime | None) -> str:
    """The first partition of a table by the day that may have rows since a moment; empty without one."""
    return "" if since is None else since.strftime(DAY_FORMAT)


def rows_of(columns: Mapping[str, Sequence[Any] | pa.Array], schema: pa.Schema) -> pa.Table:
    """Columns by name as a table, in the schema's order and of its types. A column that is not given is left out."""
    given = pa.schema([column for column in schema if column.name in columns])
    arrays = [
        values if isinstance(values := columns[column.name], pa.Array) else pa.array(values, column.type)
        for column in given
    ]
    return pa.table(arrays, given)


def microseconds(times: pa.ChunkedArray) -> Ints:
    """Times as microseconds since the epoch."""
    values: Ints = times.cast(pa.int64()).combine_chunks().to_numpy()
    return values


def listed(table: DeltaTable) -> pa.Table:
    """The files of a version with their partitions and statistics, a row each, and the range of their event times as
    DataFile has it."""
    files = pa.table(table.get_add_actions(flatten=True))
    oldest, newest = (
        files[name].cast(MOMENT) if name in files.column_names else pa.chunked_array([pa.nulls(len(files), MOMENT)])
        for name in ("min.event_time", "max.event_time")
    )
    # The library truncates a file's greatest time to the millisecond.
    newest = pc.add(newest, pa.scalar(CUT, pa.duration("us")))
    return files.append_column("oldest", oldest).append_column("newest", newest)


def data_files(table: DeltaTable | None, partition_column: str) -> list[DataFile]:
    """The files of a table's version; none of a table that was never written."""
    return [] if table is None else as_data_files(listed(table), partition_column)


def as_data_files(files: pa.Table, partition_column: str) -> list[DataFile]:
    """Rows of `listed`."""
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
    """Turn what the Delta library raises into an error that says what to do; `gone` words that a file is not there."""
    try:
        yield
    except CommitFailedError as error:
        raise TableConflict(f"a commit to {uri} lost against others again and again: {error}") from error
    except SchemaMismatchError as error:
        raise LakeError(
            f"{uri} has a column of another type than [message.fields] says now ({error}); give the field another "
            "name, or put back its kind"
        ) from error
    except pa.ArrowInvalid as error:
        raise CorruptObject(f"{uri} has a damaged file: {error}; run `tidemark repair`, which names it") from error
    except (DeltaError, OSError) as error:
        if gone is not None and isinstance(error, FileNotFoundError):
            raise gone(error) from error
        raise storage_error(uri, str(error)) from error
