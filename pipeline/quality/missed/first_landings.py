"""Finds the heartbeats that first landed with given files: their rows, minus what an earlier version held."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.lake.tables.delta_log import AddedFile, Commit
from tidemark.pipeline.lake.tables.heartbeats import IDENTITY, IDENTITY_SOURCE, PARTITION, identities
from tidemark.pipeline.lake.tables.heartbeats import range_of as range_of_file
from tidemark.pipeline.lake.tables.table import MOMENT, DamagedFile, LakeTable, listed, microseconds, table_errors

logger = logging.getLogger(__name__)

LANDINGS = pa.schema(
    {"stream_id": pa.string(), "event_time": MOMENT, "id": pa.string(), "version": pa.int64(), "missed": pa.bool_()}
)
"""One row per heartbeat: the version with which it first landed, and whether its own window was computed without it."""

NO_ROWS = pa.Table.from_batches(
    [],
    pa.schema({"stream_id": pa.string(), "event_time": MOMENT, "publisher_id": pa.string(), "message_id": pa.string()}),
)
"""An empty table with the columns of IDENTITY_SOURCE."""

EVERY, NONE = pc.scalar(True), pc.scalar(False)
"""The filters that accept every row, and no row."""


def first_landings(
    heartbeats: LakeTable, files: Sequence[AddedFile], before: datetime, now: DeltaTable, since: Sequence[Commit]
) -> tuple[pa.Table, dict[str, str]]:
    """Return the heartbeats with event times below `before` that first landed with these files, as rows of LANDINGS
    without copies, and the damaged files with their event hours, of which no rows are returned.

    The version before the oldest file determines what had landed earlier. `now` is a later version; `since` has the
    commits that added these files and all commits after them. Assumption: copies that landed later are in these files.
    Memory is bounded by the files of one event hour. Raises ObjectMissing if a file or that earlier version is gone.
    """
    by_hour = defaultdict[str, list[AddedFile]](list)
    for file in files:
        by_hour[file.partition].append(file)
    held_by_hour = _held_before(heartbeats, min(file.version for file in files), by_hour, now, since)
    found, damaged = [LANDINGS.empty_table()], dict[str, str]()
    for hour, of_hour in sorted(by_hour.items()):
        try:
            rows = earliest([_rows(heartbeats, file, before) for file in of_hour])
            if rows.num_rows and (held_files := held_by_hour.get(hour)):
                held = held_in(heartbeats, held_files, rows)
                rows = rows.join(held, list(IDENTITY), join_type="left anti", use_threads=False).select(LANDINGS.names)
        except DamagedFile as error:
            logger.warning("missed heartbeats of the event hour %s are not known: %s", hour, error)
            damaged[error.path] = hour
        else:
            found.append(rows)
    return pa.concat_tables(found), damaged


def _held_before(
    heartbeats: LakeTable, version: int, hours: Iterable[str], now: DeltaTable, since: Sequence[Commit]
) -> dict[str, list[AddedFile]]:
    """Return the files of these event hours as of the version before `version`, by hour."""
    if since[-1].version != now.version() or not all(commit.is_append for commit in since):
        earlier = heartbeats.at(version - 1) if version > 0 else None
        return {} if earlier is None else files_by_hour(earlier, listed(earlier), hours)
    # Opening the table at an earlier version would read its log again from a checkpoint.
    later = {file.path for commit in since for file in commit.added if file.version >= version}
    found = files_by_hour(now, listed(now), hours)
    return {hour: [file for file in of_hour if file.path not in later] for hour, of_hour in found.items()}


def landings(heartbeats: pa.Table, version: int) -> pa.Table:
    """Convert heartbeats with the columns of IDENTITY to rows of LANDINGS with this version, not missed yet."""
    count = heartbeats.num_rows
    rows = heartbeats.append_column("version", pa.array([version] * count, pa.int64()))
    return rows.append_column("missed", pa.array([False] * count, pa.bool_())).cast(LANDINGS)


def earliest(landed: Sequence[pa.Table]) -> pa.Table:
    """Merge rows of LANDINGS to one row per heartbeat, with its least version; missed if any of its rows was."""
    rows = pa.concat_tables(landed).group_by(list(IDENTITY), use_threads=False)
    first = rows.aggregate([("version", "min"), ("missed", "max")])
    named = first.rename_columns({"version_min": "version", "missed_max": "missed"})
    return named.select(LANDINGS.names).cast(LANDINGS)


def _rows(heartbeats: LakeTable, file: AddedFile, before: datetime) -> pa.Table:
    gone = ObjectMissing(f"{heartbeats.uri}/{file.path} was removed before it was checked")
    with table_errors(heartbeats.uri, lambda _: gone):
        rows = read_rows(heartbeats, file, pc.field("event_time") < pa.scalar(before, MOMENT))
    return landings(identities(rows), file.version)


def files_by_hour(table: DeltaTable, files: pa.Table, hours: Iterable[str]) -> dict[str, list[AddedFile]]:
    """Return the files of these event hours, by hour. `files` is the result of `listed`; a table may have thousands of
    hours."""
    files = files.filter(pc.is_in(files[f"partition.{PARTITION}"], pa.array(sorted(hours), pa.string())))
    columns = files["path"], files[f"partition.{PARTITION}"], files["oldest"], files["newest"]
    found = defaultdict[str, list[AddedFile]](list)
    for path, hour, oldest, newest in zip(*(column.to_pylist() for column in columns), strict=True):
        found[hour].append(AddedFile(table.version(), unquote(path), hour, oldest, newest))
    return found


def held_in(heartbeats: LakeTable, files: Sequence[AddedFile], rows: pa.Table, only: pc.Expression = EVERY) -> pa.Table:
    """Return the identities in these files that may match `rows`: in the same time range, of the same streams, and
    accepted by the filter `only`. A file is read only if it may contain one of the times. Raises ObjectMissing if the
    file is gone."""
    found = [identities(NO_ROWS)]
    if not rows.num_rows:
        return found[0]
    times = np.unique(microseconds(rows["event_time"]))
    least, greatest = (pa.scalar(int(time), pa.int64()).cast(MOMENT) for time in (times[0], times[-1]))
    of_streams = pc.field("stream_id").isin(pc.unique(rows["stream_id"]))
    alike = (pc.field("event_time") >= least) & (pc.field("event_time") <= greatest) & of_streams & only
    with table_errors(heartbeats.uri, lambda error: ObjectMissing(f"{heartbeats.uri} lost a file: {error}")):
        for file in files:
            oldest, newest = map(to_us, range_of_file(file))
            if np.searchsorted(times, oldest) < np.searchsorted(times, newest, side="right"):
                found.append(identities(read_rows(heartbeats, file, alike)))
    return pa.concat_tables(found)


def read_rows(heartbeats: LakeTable, file: AddedFile, wanted: pc.Expression) -> pa.Table:
    """Read the columns of IDENTITY_SOURCE of the rows that pass a filter. Raises DamagedFile, OSError."""
    with (
        heartbeats.naming_damage(file.path),
        heartbeats.folder.open_input_file(file.path) as opened,  # reading by path costs one more request
    ):
        return pq.read_table(opened, columns=list(IDENTITY_SOURCE), filters=wanted, use_threads=False)
