"""The `streams` table: the first and the last heartbeat of each stream, over all computed windows.

The table is derived from `heartbeat_diffs` alone, and rebuilt if it is lost. An update reads only the files added to
`heartbeat_diffs` since the last update.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.clock import Clock, to_us
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.errors import UNREADABLE, CorruptObject, TableConflict
from tidemark.pipeline.lake.tables.delta_log import commits, read_commit
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.table import MOMENT, OF_RUNS, LakeTable
from tidemark.pipeline.lake.tables.windowed import WindowedTable

logger = logging.getLogger(__name__)

STREAMS, STREAM_COLUMNS = described(
    [
        Column("stream_id", pa.string(), "The stream."),
        Column("first_event_time", MOMENT, "The stream's first heartbeat in any computed window."),
        Column("last_event_time", MOMENT, "The stream's last heartbeat in any computed window."),
    ]
)
"""Schema of `streams`, and the descriptions of its columns. The table has one row per stream, sorted by `stream_id`,
and no partitions."""

BEATS = pa.schema({"stream_id": pa.string(), "event_time": MOMENT})
NAMES = pa.schema({"stream_id": pa.string()})

FILES_AT_ONCE = 64
"""Number of files of `heartbeat_diffs` whose streams are in memory at the same time. It limits the memory of a
rebuild."""

OF_TABLE, THROUGH = "tidemark.diffs_table", "tidemark.diffs_version"
"""Metadata keys in a commit to `streams`. They hold the id (OF_TABLE) and the version (THROUGH) of the
`heartbeat_diffs` table from which the streams were derived."""


@dataclass(frozen=True, slots=True)
class KnownStreams:
    """All streams in version `diffs_version` of a `heartbeat_diffs` table. `diffs_table` is the id of that table.
    `rows` contains the columns of STREAMS, sorted by `stream_id`."""

    diffs_table: str = ""
    diffs_version: int = -1
    rows: pa.Table = field(default_factory=STREAMS.empty_table)

    def silent_since(self, moment: datetime) -> pa.Table:
        """Return the rows of the streams without a heartbeat at `moment` or later, the longest silence first."""
        silent = self.rows.filter(pc.less(self.rows["last_event_time"], pa.scalar(moment, MOMENT)))
        return silent.sort_by([("last_event_time", "ascending"), ("stream_id", "ascending")])

    def begun_before(self, moment: datetime) -> int:
        """Return the number of streams whose first heartbeat was before `moment`."""
        return pc.sum(pc.less(self.rows["first_event_time"], pa.scalar(moment, MOMENT))).as_py() or 0

    def begun_in(self, start: datetime, end: datetime) -> set[str]:
        """Return the ids of the streams whose first heartbeat is in `[start, end)`."""
        first = self.rows["first_event_time"]
        begun = pc.and_(pc.greater_equal(first, pa.scalar(start, MOMENT)), pc.less(first, pa.scalar(end, MOMENT)))
        return set(self.rows["stream_id"].filter(begun).to_pylist())


class Streams:
    """Keeps the `streams` table up to date with `heartbeat_diffs`. An instance is not thread-safe, but several
    processes can save the table concurrently."""

    def __init__(self, table: LakeTable, diffs: LakeTable, clock: Clock) -> None:
        self.table = table
        table.properties = OF_RUNS
        self._diffs, self._clock = diffs, clock

    def current(self) -> DeltaTable | None:
        """Return the table at its newest version; None if it does not exist. Raises LakeError."""
        try:
            return self.table.current()
        except CorruptObject as error:
            raise CorruptObject(f"{error}, or delete {self.table.uri}: the next run makes the table again") from error

    def known(self) -> KnownStreams:
        """Return all streams in the newest version of `heartbeat_diffs`, without writing anything. Raises LakeError."""
        return self._after(self._kept(self.current()))

    def save(self) -> KnownStreams:
        """Save and return all streams of `heartbeat_diffs`. An open `heartbeat_diffs` is updated only if `streams` is
        ahead of it or another process saved first. Raises LakeError, and TableConflict if every attempt fails."""
        for attempt in self.table.attempts():
            table = self.current()
            seen = 0 if table is None else table.version()
            kept = self._kept(table)
            known = self._after(kept, as_open=attempt == 0)
            if known is kept:
                break
            with suppress(TableConflict):
                self._keep(known, seen)
                break
        return known

    def _kept(self, table: DeltaTable | None) -> KnownStreams:
        if table is None:
            return KnownStreams()
        try:
            for version in range(table.version(), -1, -1):
                commit = read_commit(self.table, version)
                if OF_TABLE in commit.metadata or commit.added or commit.removed:
                    break  # later commits, such as those of a vacuum, changed no row
            rows = self.table.rows(table, STREAMS.names).cast(STREAMS)
        except UNREADABLE as error:  # the library deletes old commits
            logger.info("the streams are rebuilt, because %s", error)
            return KnownStreams()
        if OF_TABLE not in commit.metadata or THROUGH not in commit.metadata:
            return KnownStreams()
        return KnownStreams(commit.metadata[OF_TABLE], int(commit.metadata[THROUGH]), rows)

    def _after(self, kept: KnownStreams, *, as_open: bool = False) -> KnownStreams:
        if (diffs := self._diffs.current(as_open=as_open)) is None:
            return kept if kept.diffs_version < 0 else KnownStreams()
        name, version = str(diffs.metadata().id), diffs.version()
        if kept.diffs_table == name:
            if kept.diffs_version > version:  # the open table is not the newest, or was restored from a copy
                return self._after(kept if as_open else KnownStreams())
            if kept.diffs_version == version:
                return kept
            try:
                new = commits(self._diffs, kept.diffs_version, version)
                added = [file.path for commit in new for file in commit.added]
                return KnownStreams(name, version, self._merged(kept.rows, added))
            except UNREADABLE as error:
                logger.info("the streams are rebuilt, because %s", error)
        paths = [file.path for file in self._diffs.files(at=diffs)]
        return KnownStreams(name, version, self._merged(STREAMS.empty_table(), paths))

    def _merged(self, rows: pa.Table, paths: list[str]) -> pa.Table:
        for first in range(0, len(paths), FILES_AT_ONCE):
            beats = (self._diffs.file_rows(path, BEATS) for path in paths[first : first + FILES_AT_ONCE])
            read = [_extent(rows_of_file, "event_time", "event_time") for rows_of_file in beats]
            rows = _extent(pa.concat_tables([rows, *read]), "first_event_time", "last_event_time")
        return rows.sort_by("stream_id")

    def _keep(self, known: KnownStreams, seen: int) -> None:
        """Save the streams as version `seen + 1` of the table. Raises TableConflict if the table is no longer at
        version `seen`."""
        table = self.table.complete(STREAMS, as_open=True)
        if table.version() != seen:
            raise TableConflict(f"{self.table.uri} is now at version {table.version()}, no longer at {seen}")
        metadata = {OF_TABLE: known.diffs_table, THROUGH: str(known.diffs_version)}
        written = NewFiles(self.table, self._clock).write(known.rows)
        self.table.transact(table, written, to_us(self._clock.now()), metadata, "overwrite")


def _extent(rows: pa.Table, first: str, last: str) -> pa.Table:
    of_each = rows.group_by("stream_id", use_threads=False).aggregate([(first, "min"), (last, "max")])
    return of_each.select(["stream_id", f"{first}_min", f"{last}_max"]).rename_columns(STREAMS.names).cast(STREAMS)


def streams_in(diffs: WindowedTable, windows: Iterable[str]) -> dict[str, int]:
    """Return the number of streams with a heartbeat in each of these windows, by window key. Windows that are not
    computed are left out. If the table is already open, it is not updated first."""
    seen: dict[str, list[pa.ChunkedArray]] = {}
    for file in diffs.table.files(set(windows), diffs.table.current(as_open=True)):
        beats = diffs.table.file_rows(file.path, NAMES)
        seen.setdefault(file.partition, []).append(pc.unique(beats["stream_id"]))
    return {key: len(pc.unique(pa.chunked_array(names, pa.string()))) for key, names in sorted(seen.items())}
