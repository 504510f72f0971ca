"""The base class of the lake's Delta tables. It opens and creates tables, adds files, reads rows, and translates
errors.

A table that does not exist counts as empty. The first write creates it.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError
from deltalake.table import FilterConjunctionType, TableAlterer
from deltalake.transaction import AddAction, RemoveAction

from tidemark.pipeline import version
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.messages import MOMENT as MOMENT
from tidemark.pipeline.errors import REFUSALS, CorruptObject, LakeError, NewerFormat, ObjectMissing, TableConflict
from tidemark.pipeline.lake.store.address import arrow_files, open_objects, storage_options, table_uri
from tidemark.pipeline.lake.store.admission import admit, claim
from tidemark.pipeline.lake.store.disk import plain_text, storage_error
from tidemark.pipeline.lake.tables.commit_sync import CommitSync
from tidemark.pipeline.lake.tables.table_log import TableLog
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import format_of, marks, refuse_newer
from tidemark.pipeline.watermark.histogram import Ints

CHECKPOINTS: Mapping[str, str] = {"delta.checkpointInterval": "20"}
"""The table property for the number of commits between two checkpoints.

A process that opens a table reads the last checkpoint and every later commit. The value 20 makes that about 10 commits
on average, instead of 50 with the library's default. A lower value would delay more ticks, because they wait while a
checkpoint is written.
"""

OF_RUNS: Mapping[str, str] = {"delta.checkpointInterval": "10"}
"""Like CHECKPOINTS, but for tables to which only runs commit. The interval is shorter, because every run opens these
tables, and no tick waits for their checkpoints."""

VERSIONS_KEPT = timedelta(days=7)
"""Time for which earlier versions of tables are kept, with the files that compaction or recomputation has replaced. No
reader uses a version for that long, and users can still look at last week's rows."""

SPARE = timedelta(days=1)
"""Additional time for which a table's log keeps the record of a removed file, after the file's own retention has ended.
A vacuum finds removed files only by these records."""

SCANNED_ROWS = 5_000
"""Maximum number of rows per batch of a scan. A scan has several batches in memory, and their payloads may be large."""

DAY_FORMAT = "%Y-%m-%d"

READ = {"timestampNtz", "variantType"}
"""Delta's reader features that change neither the rows of a file nor the names of its columns. If a table has
`timestampNtz`, the Delta library adds `variantType` at any change of a property. A table with any other feature is
refused: with deletion vectors, tidemark would read deleted rows, and keep each replaced file beside the new one."""

FILE_COLUMNS = {
    **dict.fromkeys(("num_records", "size_bytes", "modification_time"), pa.int64()),
    "path": pa.string(),
    "oldest": MOMENT,
    "newest": MOMENT,
}
"""Columns of `LakeTable.listed` that all tables have, with their types."""

PUBLISHED = ("message_id", "publish_time")
"""The columns that `LakeTable.published_between` returns by default."""

CUT = timedelta(milliseconds=1)
"""Time added to the newest event time in a file's statistics. The Delta library truncates that time to milliseconds;
the sum is an upper bound."""


ATTEMPTS = 60
"""Maximum number of attempts at a commit. An attempt fails if another process commits first."""

Damaged = dict[str, str]
"""Maps the path of each damaged or missing file to its partition. A read with this argument skips such files and adds
them to the dict; a read without it raises DamagedFile."""


class FileChange(Protocol):
    """A file that a transaction adds to a table (NewFile) or removes from it (DataFile)."""

    def action(self, partition_column: str, at_us: int, *, data_change: bool) -> AddAction | RemoveAction:
        """Return the Delta action. `at_us` is the time of the transaction in microseconds. An empty `partition_column`
        means that the table has no partitions. `data_change` is false if the transaction only moves rows between
        files."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. `path` is relative to the table, `size` is in bytes, and `partition` is the value of the
    partition column. `added_at` is the time at which the file was added. `version` is the table version that added the
    file, or -1 if that is unknown.

    `oldest` and `newest` are the bounds of the file's event times, or None without statistics. `newest` may be up to
    CUT too late.
    """

    path: str
    rows: int
    size: int
    partition: str
    added_at: datetime
    oldest: datetime | None
    newest: datetime | None
    version: int = -1

    def action(self, partition_column: str, at_us: int, *, data_change: bool) -> RemoveAction:
        return RemoveAction(
            path=self.path,
            data_change=data_change,
            deletion_timestamp=at_us // 1000,
            size=self.size,
            partition_values={partition_column: self.partition},
        )

    def may_have(self, start: datetime, end: datetime) -> bool:
        """Return True if the file may contain event times in `[start, end]`."""
        return (self.oldest is None or self.oldest <= end) and (self.newest is None or self.newest >= start)


class DamagedFile(CorruptObject):
    """A file of a table is damaged or gone."""

    def __init__(self, uri: str, path: str, why: object) -> None:
        super().__init__(f"{uri}/{path} is damaged ({why}); `tidemark repair` says what depends on it, and what to do")
        self.path = path


class LakeTable:
    """A Delta table, partitioned by one text column. If `partition_column` is empty, the table has no partitions.
    `uri` and `storage_options` are the arguments that the Delta library takes, and `folder` is the table's folder as an
    Arrow file system. The table need not exist yet.

    The table's properties contain the format of the newest version of tidemark that has written to the table. Opening a
    table raises NewerFormat if the format of the table or of the lake is newer than this version knows. Not
    thread-safe. Releases the GIL while it waits for a bucket's response.
    """

    schema: pa.Schema
    """The columns that tidemark writes. Only the tables `heartbeats` and `quarantine` have this attribute."""

    def __init__(self, lake: LakeSettings, name: str, partition_column: str, kept_bytes: int = 0) -> None:
        """Prepare the table `name` of a lake. `kept_bytes` is the size of the cache for its files in a bucket."""
        self._lake, self.uri, self.storage_options = lake, table_uri(lake, name), storage_options(lake)
        self.folder = arrow_files(lake, name, kept_bytes)
        self.partition_column, self.in_bucket = partition_column, lake.folder is None
        self.properties = CHECKPOINTS
        """The table properties to set when the table is created. If a table lacks one of them, the next write sets them
        all."""
        self._table: DeltaTable | None = None
        in_place = partial(DeltaTable, self.uri, storage_options=self.storage_options)
        self.log = TableLog(open_objects(lake, name), in_place, copies=self.in_bucket)
        self._sync = None if self.in_bucket else CommitSync(Path(self.uri), self.log)

    def current(self, *, as_open: bool = False) -> DeltaTable | None:
        """Return the table at its newest version; None if the table does not exist. With `as_open`, a table that is
        already open is returned without an update.

        If there is no new commit, the call makes only two reads: it looks for the next commit, and it reads the last
        known one to detect a deleted or recreated table. In a bucket, use `in_place` for changes by Delta's methods.
        """
        if as_open and (opened := self._table) is not None:
            return opened
        admit(self._lake)
        with table_errors(self.uri):
            table = self._table  # an overlapping tick may reopen the table meanwhile
            if table is not None and not self.log.is_worn(table) and self.log.update(table):
                return self._readable(table)
            self._table = None
            try:
                self._table = table = self._readable(self.log.open())
            except TableNotFoundError:
                return None
            if self._sync is not None:
                self._sync.opened_at(table.version())
            return table

    def in_place(self) -> DeltaTable | None:
        """Return the table at its newest version, for changes by the Delta library's own methods, or for reads that
        later commits must not disturb. Return None if the table does not exist."""
        with table_errors(self.uri):
            return None if self.current() is None else self.log.in_place()

    def _readable(self, table: DeltaTable) -> DeltaTable:
        metadata, protocol = table.metadata(), table.protocol()
        refuse_newer(self.uri, metadata.configuration)
        is_mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
        if unread := {*(protocol.reader_features or ()), *["columnMapping"] * is_mapped} - READ:
            raise _foreign_features(self.uri, f"Unsupported table features: {', '.join(sorted(unread))}")
        if metadata.partition_columns != [name for name in (self.partition_column,) if name]:
            by = self.partition_column or "no column"
            raise CorruptObject(
                f"{self.uri} was not created by tidemark, which would have partitioned it by {by}. "
                "Move it out of the lake"
            )
        return table

    def _open(self) -> DeltaTable | None:
        """Return the open table without updating it. Return None if no table is open, or if the open one was deleted or
        recreated, has an older format, lacks a property, or has followed too many commits (`TableLog.is_worn`)."""
        if self._table is None or self.log.is_worn(self._table) or self._lacks(self._table):
            return None
        with table_errors(self.uri):
            return self._table if self.log.is_unchanged(self._table) else None

    def _lacks(self, table: DeltaTable) -> bool:
        properties = table.metadata().configuration
        return format_of(properties) < version.FORMAT or not self.properties.keys() <= properties.keys()

    def at(self, version: int) -> DeltaTable:
        """Return the table at a version. Raises LakeError, and ObjectMissing if the version can no longer be read."""
        try:
            with table_errors(self.uri):
                return self._readable(DeltaTable(self.uri, version=version, storage_options=self.storage_options))
        except (*REFUSALS, NewerFormat):
            raise
        except LakeError as error:
            raise ObjectMissing(f"version {version} of {self.uri} cannot be read any more: {error}") from error

    @contextmanager
    def naming_damage(self, path: str) -> Iterator[None]:
        """Translate an error that Arrow raises in the `with` block into DamagedFile. `path` is the file that the
        block reads. If the storage fails or the file is gone, raise OSError or LakeError instead."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            with self.folder.open_input_stream(path) as opened:
                opened.read()
            if isinstance(error, OSError) and error.errno:  # the storage failed, and answers again
                raise
            raise DamagedFile(self.uri, path, error) from error

    def file_rows(self, path: str, schema: pa.Schema | None, wanted: pc.Expression | None = None) -> pa.Table:
        """Return the rows of one file that match the filter `wanted`. They have the columns and types of `schema`, or
        all columns of the file if `schema` is None. Without a schema, Arrow cannot filter text columns of files that
        the Delta library's `delete` wrote. Raises DamagedFile, LakeError, and ObjectMissing if the file is gone."""
        names = None if schema is None else schema.names
        with (
            table_errors(self.uri, ObjectMissing),
            self.naming_damage(path),
            self.folder.open_input_file(path) as opened,  # passing the path to Arrow would cost one more request
        ):
            return pq.read_table(opened, schema=schema, columns=names, filters=wanted, use_threads=False)

    def rows(
        self,
        table: DeltaTable,
        columns: Sequence[str],
        wanted: pc.Expression | None = None,
        partitions: Sequence[str] | None = None,
        damaged: Damaged | None = None,
    ) -> pa.Table:
        """Return the rows of an open table that match the filter `wanted`, with these columns. If `partitions` is
        given, return only rows of these partitions. Files are not opened if their statistics show that no row matches.
        Raises LakeError."""
        pruned: FilterConjunctionType = [(self.partition_column, "in", [*partitions])] if partitions is not None else []
        with table_errors(self.uri):
            files = table.to_pyarrow_dataset(filesystem=self.folder, file_pruning_predicate=pruned or None)
            with suppress(pa.ArrowException, OSError):
                return files.to_table(list(columns), filter=wanted, use_threads=False)
            read = [files.schema.empty_table().select([name for name in columns if name in files.schema.names])]
            for file in files.get_fragments(wanted):
                with self._skipping(file, damaged):
                    read.append(file.to_table(files.schema, list(columns), filter=wanted, use_threads=False))
            return pa.concat_tables(read)

    @contextmanager
    def _skipping(self, file: Any, damaged: Damaged | None) -> Iterator[None]:
        """Let the `with` block read `file`. If the file is damaged or missing, end the block, and add the file to
        `damaged` or raise DamagedFile."""
        try:
            with self.naming_damage(file.path):
                yield
        except (DamagedFile, FileNotFoundError) as error:
            if damaged is None:
                gone = DamagedFile(self.uri, file.path, "it is gone")
                raise error if isinstance(error, DamagedFile) else gone from error
            from pyarrow.dataset import get_partition_keys  # imports pandas

            damaged[file.path] = get_partition_keys(file.partition_expression)[self.partition_column]

    def published_between(
        self, start: datetime, end: datetime, columns: Sequence[str] = PUBLISHED, damaged: Damaged | None = None
    ) -> pa.Table:
        """Return the rows published in `[start, end)`, with these columns."""
        if (table := self.current()) is None:
            return pa.schema(map(self.schema.field, columns)).empty_table()
        wanted, partitions = self.published_in(start, end, table)
        return self.rows(table, columns, wanted, partitions, damaged)

    def published_in(
        self, start: datetime, end: datetime, at: DeltaTable | None = None
    ) -> tuple[pc.Expression, list[str]]:
        """Return a filter for the rows published in `[start, end)`, and the partitions that may have such rows. The
        partitions are derived from the file statistics of the newest version, or of the open table `at`. Restrict reads
        to these partitions: otherwise Arrow opens all files, which takes seconds for a year of rows."""
        files, published = published_files(self.listed(at), start, end), pc.field("publish_time")
        partitions = pc.unique(files[f"partition.{self.partition_column}"]).to_pylist()
        return (published >= pa.scalar(start, MOMENT)) & (published < pa.scalar(end, MOMENT)), partitions

    def scanned(
        self, columns: Sequence[str], wanted: pc.Expression, partitions: Sequence[str], damaged: Damaged | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of the newest version that match the filter `wanted`, with these columns, in batches of at
        most SCANNED_ROWS. Only rows of these partitions are yielded. Files are not opened if their statistics show that
        no row matches. Yields nothing if the table does not exist."""
        if (table := self.current()) is None:
            return
        with table_errors(self.uri):
            pruned: FilterConjunctionType = [(self.partition_column, "in", [*partitions])]
            files = table.to_pyarrow_dataset(filesystem=self.folder, file_pruning_predicate=pruned)
            for file in files.get_fragments(wanted):
                with self._skipping(file, damaged):
                    batches = file.to_batches(
                        files.schema, list(columns), wanted, SCANNED_ROWS, batch_readahead=1, use_threads=False
                    )
                    yield from (pa.Table.from_batches([batch]) for batch in batches if len(batch))

    def listed(self, at: DeltaTable | None = None) -> pa.Table:
        """Return one row per file of the newest version, or of the open table `at`, with the file's partition and
        statistics. The columns `oldest` and `newest` are the bounds of the file's event times, as in DataFile. Returns
        no rows if the table does not exist."""
        if (table := at or self.current()) is None:
            columns = {**FILE_COLUMNS, f"partition.{self.partition_column}": pa.string()}
            return pa.schema(columns).empty_table()
        files = pa.table(table.get_add_actions(flatten=True))
        oldest, newest = _bounds(files, "event_time")
        # The Delta library truncates a file's newest time to milliseconds.
        newest = pc.add(newest, pa.scalar(CUT, pa.duration("us")))
        return files.append_column("oldest", oldest).append_column("newest", newest)

    def files(self, partitions: Collection[str] | None = None, at: DeltaTable | None = None) -> list[DataFile]:
        """Return the files of the newest version, or of the open table `at`. If `partitions` is given, return only
        files of these partitions, which is much faster in a table of many files."""
        found = self.listed(at)
        wanted = found if partitions is None else of_partitions(found, self.partition_column, partitions)
        return as_data_files(wanted, self.partition_column)

    def landed(self) -> pa.Table:
        """Return one row per file of the newest version, the most recently landed file first. The columns are those of
        `listed`, the number of rows (`rows`), and the landing times of the file's first and last row (`first`, `last`;
        the epoch if unknown)."""
        files = self.listed()
        for name, bound in zip(("first", "last"), _bounds(files, "landed_at"), strict=True):
            files = files.append_column(name, pc.fill_null(bound, from_us(0)))
        return files.append_column("rows", pc.fill_null(files["num_records"], 0)).sort_by([("last", "descending")])

    def landed_since(self, since: datetime) -> tuple[int, list[str]]:
        """Estimate how many rows have landed since a moment. Returns the number, and the paths of the files with such
        rows, the newest file first.

        Reads only file statistics. The rows of a file are assumed to be spread evenly over the file's landing times.
        """
        files = self.landed()
        files = files.filter(pc.greater_equal(files["last"], pa.scalar(since, MOMENT)))
        first_us, last_us, since_us = microseconds(files["first"]), microseconds(files["last"]), to_us(since)
        share = np.clip((last_us - since_us + 1) / (last_us - first_us + 1), 0, 1)
        rows = round(float((files["rows"].to_numpy() * share).sum()))
        return rows, list(map(unquote, files["path"].to_pylist()))

    def days(self, since: datetime | None = None) -> list[str]:
        """Return the partitions with rows that may have landed since a moment, in ascending order. If `since` is
        None, return all partitions. Only for tables that are partitioned by day."""
        days = {file.partition for file in self.files()}
        return sorted(day for day in days if day >= first_day(since))

    def newest_by_day(
        self,
        since: datetime | None,
        limit: int,
        rows_of: Callable[[str], Iterable[pa.Table]],
        order: Sequence[tuple[str, ...]],
    ) -> list[dict[str, Any]]:
        """Return the newest rows that may have landed since a moment, at most `limit`. `rows_of` returns a day's rows
        in parts, and `order` contains Arrow's sort keys, which must put the newest row first. Once there are `limit`
        rows, no earlier day is read."""
        found: list[dict[str, Any]] = []
        for day in reversed(self.days(since)):
            newest = list[pa.Table]()
            for rows in rows_of(day):
                newest = [pa.concat_tables([*newest, rows]).sort_by(order).slice(0, limit - len(found))]
            found += [row for rows in newest for row in rows.to_pylist()]
            if len(found) >= limit:
                break
        return found

    def check(self) -> None:
        """Raise InvalidSettings if the table's columns do not match the settings. The base class checks nothing;
        subclasses may."""

    def transact(
        self,
        table: DeltaTable,
        files: Iterable[FileChange],
        at_us: int,
        metadata: Mapping[str, str] | None = None,
        mode: Literal["append", "overwrite"] = "append",
        *,
        retries: int = 0,
        noted: list[Transaction] | None = None,
        data_change: bool = True,
    ) -> None:
        """Add files to the table and remove files from it, in one durable transaction, and update the open `table`. The
        commit has this metadata, and the application transactions `noted`. The mode `overwrite` also removes all
        earlier files. With `retries`, the Delta library repeats an append that another commit overtook. For `at_us` and
        `data_change`, see FileChange. Raises TableConflict and LakeError. A LakeError may mean that only the sync after
        the commit failed."""
        by = [self.partition_column] if self.partition_column else []
        actions = [file.action(self.partition_column, at_us, data_change=data_change) for file in files]
        stated = None if metadata is None else dict(metadata)
        made = CommitProperties(max_commit_retries=retries, custom_metadata=stated, app_transactions=noted)
        with table_errors(self.uri), self.log.committing(table) as hooks:
            table.create_write_transaction(
                actions, mode, table.schema(), by, commit_properties=made, post_commithook_properties=hooks
            )
        self.make_durable()

    def attempts(self, then: str = "try again") -> Iterator[int]:
        """Yield the number of each attempt at a commit, from 0. The caller leaves the loop once its commit succeeds.
        After the last attempt, raise TableConflict. `then` ends the error's message."""
        yield from range(ATTEMPTS)
        raise TableConflict(f"other writers committed to {self.uri} first, {ATTEMPTS} times in a row; {then}")

    def complete(self, schema: pa.Schema, *, as_open: bool = False) -> DeltaTable:
        """Add the columns of `schema` that the table lacks, and return the table. Part of an existing column, such as a
        field of a struct, becomes nullable if it is nullable in `schema`. Creates the table if it does not exist. Sets
        the current format and the properties if the table has an older format or lacks a property. With `as_open`, a
        table that is already open and still valid is not updated to its newest version first. Raises TableConflict,
        NewerFormat, LakeError, and InvalidSettings (see `check`)."""
        claim(self._lake)
        table = (self._open() if as_open else None) or self._created(schema)
        self.check()
        there = {column.name.lower(): (column.name, column.type) for column in table.schema().fields}
        wanted: list[Field] = Schema.from_arrow(schema).fields
        changed = [column for column in wanted if there.get(column.name.lower()) != (column.name, column.type)]
        for column in changed:
            if (alike := there.get(column.name.lower(), (column.name,))[0]) != column.name:
                raise LakeError(
                    f"{self.uri} has the column {alike} and cannot have {column.name}, which differs only in case. "
                    "Nothing was committed; use the existing name, or choose a different one"
                )
        return self._altered(lambda alter: alter.add_columns(changed)) if changed else table

    def _created(self, schema: pa.Schema) -> DeltaTable:
        if (table := self.current()) is None:
            with table_errors(self.uri):
                self._create(schema)
            table = self.current()
        if table is not None and not self._lacks(table):
            return table
        wanted = {**self.properties, **marks()}
        return self._altered(lambda alter: alter.set_table_properties(wanted, raise_if_not_exists=False))

    def _altered(self, change: Callable[[TableAlterer], None]) -> DeltaTable:
        with table_errors(self.uri):
            if (table := self.in_place()) is not None:
                change(table.alter)
            if (table := self.current()) is None:
                raise TableConflict(f"{self.uri} was deleted during a write; try again")
            return table

    def _create(self, schema: pa.Schema) -> None:
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="error",
                partition_by=[self.partition_column] if self.partition_column else None,
                configuration={**self.properties, **kept_for(VERSIONS_KEPT + SPARE), **marks()},
                raise_if_key_not_exists=False,  # the format mark is not one of Delta's own properties
                storage_options=self.storage_options,
                # With retries, the loser of a race to create the table would create it a second time.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:  # another process may have created the table first
            if self.current() is None:
                raise

    def make_durable(self) -> None:
        """Make all commits since the last call durable, with the files that they add. Raises LakeFull and LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_commits()

    def make_files_durable(self, paths: Iterable[str]) -> None:
        """Make data files durable, given their paths within the table. Call this before a commit adds the files. Raises
        LakeFull and LakeError."""
        if self._sync is not None:
            with table_errors(self.uri):
                self._sync.sync_files(paths)


def kept_for(keep: timedelta) -> dict[str, str]:
    """Return the table properties that make a log keep commits and tombstones for the time `keep`, in whole hours."""
    names = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
    return dict.fromkeys(names, f"interval {keep // timedelta(hours=1)} hours")


def first_day(since: datetime | None) -> str:
    """Return the partition that contains a moment, in a table that is partitioned by day. For None, return an empty
    string, which sorts before all partitions."""
    return "" if since is None else since.strftime(DAY_FORMAT)


def rows_of(columns: Mapping[str, Sequence[Any] | pa.Array], schema: pa.Schema) -> pa.Table:
    """Return columns as an Arrow table, in the order and with the types of `schema`. Columns of the schema that are not
    in `columns` are left out."""
    given = pa.schema([column for column in schema if column.name in columns])
    return pa.Table.from_pydict(columns, given)


def merged(tables: Iterable[pa.Table], most_bytes: int, most_rows: int = sys.maxsize) -> Iterator[pa.Table]:
    """Merge tables into larger ones of at most `most_bytes` and `most_rows`. A table above a limit is not merged."""
    held, size, count = list[pa.Table](), 0, 0
    for rows in tables:
        more = rows.nbytes
        if held and (size + more > most_bytes or count + len(rows) > most_rows):
            yield pa.concat_tables(held)
            held, size, count = [], 0, 0
        held.append(rows)
        size, count = size + more, count + len(rows)
    if held:
        yield pa.concat_tables(held)


def microseconds(times: pa.ChunkedArray) -> Ints:
    """Return times as an array of microseconds since the epoch."""
    values: Ints = times.cast(pa.int64()).combine_chunks().to_numpy()
    return values


def _bounds(files: pa.Table, column: str) -> list[pa.ChunkedArray]:
    """Return the minimum and the maximum of a column of times in each file, null if a file lacks this statistic.
    `files` is a result of `LakeTable.listed`."""
    unknown, names = pa.chunked_array([pa.nulls(len(files), MOMENT)]), (f"min.{column}", f"max.{column}")
    return [files[name].cast(MOMENT) if name in files.column_names else unknown for name in names]


def published_files(files: pa.Table, start: datetime, end: datetime) -> pa.Table:
    """Return only the files that may have rows published in `[start, end)`. `files` is a result of
    `LakeTable.listed`."""
    first, last = _bounds(files, "publish_time")
    reaches = pc.greater_equal(last, pa.scalar(start - CUT, MOMENT))  # the newest time may be truncated
    return files.filter(pc.fill_null(pc.and_(pc.less(first, pa.scalar(end, MOMENT)), reaches), True))


def of_partitions(files: pa.Table, partition_column: str, partitions: Collection[str]) -> pa.Table:
    """Return only the files that belong to these partitions. `files` is a result of `LakeTable.listed`."""
    wanted = pa.array(sorted(partitions), pa.string())
    return files.filter(pc.is_in(files[f"partition.{partition_column}"], wanted))


def as_data_files(files: pa.Table, partition_column: str) -> list[DataFile]:
    """Convert a result of `LakeTable.listed` to DataFiles."""
    names = ("path", "num_records", "size_bytes", f"partition.{partition_column}", "modification_time")
    columns = (files[name].to_pylist() for name in names)
    # Arrow converts times slowly, and integers quickly.
    bounds = (files[name].cast(pa.int64()).to_pylist() for name in ("oldest", "newest"))
    return [
        DataFile(path, rows or 0, size, partition, from_us(added_ms * 1000), _moment(oldest_us), _moment(newest_us))
        for path, rows, size, partition, added_ms, oldest_us, newest_us in zip(*columns, *bounds, strict=True)
    ]


def by_partition(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Group files by their partition."""
    found = defaultdict[str, list[DataFile]](list)
    for file in files:
        found[file.partition].append(file)
    return found


def _moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else from_us(time_us)


def _foreign_features(uri: str, found: object) -> CorruptObject:
    return CorruptObject(
        f"another tool has turned on features of {uri} that tidemark cannot handle: {found}. Nothing was "
        "committed; drop these features with that tool, or restore a backup of the table"
    )


@contextmanager
def table_errors(uri: str, gone: Callable[[str], LakeError] = CorruptObject) -> Iterator[None]:
    """Translate errors that the Delta library and Arrow raise in the `with` block into LakeErrors, which say what to
    do. `gone` turns a message about a missing file into the error to raise."""
    try:
        yield
    except CommitFailedError as error:
        if "Unsupported table features" in str(error):
            raise _foreign_features(uri, error) from error
        raise TableConflict(
            f"other writers committed to {uri} first, or the answer to this commit was lost: {plain_text(error)}. Try "
            "again"
        ) from error
    except SchemaMismatchError as error:
        raise LakeError(
            f"{uri} has a column whose type differs from [message.fields] ({error}); give the field another name, or "
            "restore its kind"
        ) from error
    except pa.ArrowInvalid as error:
        raise CorruptObject(f"{uri} has a damaged file: {error}; run `tidemark repair`, which names it") from error
    except (DeltaError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise gone(f"{uri} lacks a file: {plain_text(error)}; `tidemark repair` says what depends on it") from error
        raise storage_error(uri, str(error)) from error
