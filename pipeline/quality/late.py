"""Counts late heartbeats, which first landed below the watermark, per window and per stream. Late copies are counted
separately.

An event hour is read only if the statistics of one of its files allow a late row. When files are added, they are read,
and so are the earlier files that may hold copies of their late heartbeats.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us, from_us
from tidemark.pipeline.lake.tables.delta_log import AddedFile
from tidemark.pipeline.lake.tables.heartbeats import HOUR_FORMAT, IDENTITY, PARTITION, identities
from tidemark.pipeline.lake.tables.table import DamagedFile, LakeTable, listed, microseconds, table_errors
from tidemark.pipeline.quality.counts import Counts
from tidemark.pipeline.quality.lacking import NO_ROWS, files_by_hour, held_in, read_rows
from tidemark.pipeline.windows import Windowing


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Counts):
    """The late heartbeats with event times from the hour of `since`, and the number of late rows that are copies. As in
    `heartbeat_diffs`, a heartbeat is late if no copy of it landed in time. Rows of damaged files count if they were
    read earlier."""

    since: datetime
    copies: int = 0


logger = logging.getLogger(__name__)

LATE_WITHIN = timedelta(days=1)
"""Range below the watermark in which late heartbeats are counted, in event time."""

NOTHING = identities(NO_ROWS)


@dataclass(frozen=True, slots=True)
class _Hour:
    """The identities of the late rows in the files of an event hour, and of those that also landed in time. Both
    include copies."""

    files: frozenset[str]
    late: pa.Table
    in_time: pa.Table

    @property
    def first(self) -> pa.Table:
        """The late heartbeats without copies, and without those of which a copy landed in time."""
        each = self.late.group_by(list(IDENTITY), use_threads=False).aggregate([])
        return each.join(self.in_time, list(IDENTITY), join_type="left anti", use_threads=False)


UNREAD = _Hour(frozenset(), NOTHING, NOTHING)


class LateHeartbeats:
    """Counts a lake's late heartbeats; each call reads only new files. Not thread-safe."""

    def __init__(self, heartbeats: LakeTable, windowing: Windowing) -> None:
        self._heartbeats = heartbeats
        self._windowing = windowing
        self._hours: dict[str, _Hour] = {}

    def since(self, since: datetime) -> Late:
        """Count the late heartbeats with event times from the hour of `since`. Raises LakeError."""
        table = self._heartbeats.current()
        if table is None:
            return Late(since=since)
        files = listed(table)
        files = files.filter(pc.greater_equal(files[f"partition.{PARTITION}"], since.strftime(HOUR_FORMAT)))
        suspects = files  # those whose statistics allow late rows
        if "max.late" in files.column_names:
            suspects = files.filter(pc.fill_null(files["max.late"].cast(pa.bool_()), True))
        paths = set(map(unquote, suspects["path"].to_pylist()))
        of_hours = files_by_hour(table, files, set(suspects[f"partition.{PARTITION}"].to_pylist()))
        damaged = dict[str, str]()
        known, self._hours = self._hours, {}
        for name, of_hour in of_hours.items():
            self._hours[name] = known.get(name, UNREAD)
            try:
                self._hours[name] = self._read(self._hours[name], of_hour, paths)
            except DamagedFile as error:
                logger.warning("late heartbeats of the event hour %s are not known: %s", name, error)
                damaged[error.path] = name
        by_window, by_stream, copies = Counter[int](), Counter[str](), 0
        for hour in self._hours.values():
            first = hour.first
            event_us = microseconds(first["event_time"])
            by_window.update((event_us - event_us % duration_us(self._windowing.length)).tolist())
            by_stream.update(first["stream_id"].to_pylist())
            copies += hour.late.num_rows - first.num_rows
        return Late(
            since=since,
            rows=pc.sum(files["num_records"]).as_py() or 0,
            by_window={self._windowing.containing(from_us(start)).key: by_window[start] for start in sorted(by_window)},
            by_stream=dict(by_stream.most_common()),
            copies=copies,
            damaged=damaged,
        )

    def _read(self, known: _Hour, files: Sequence[AddedFile], may_be_late: AbstractSet[str]) -> _Hour:
        """Return the hour after reading its new files."""
        if not known.files <= {file.path for file in files}:
            known = UNREAD  # they were replaced
        new = [file for file in files if file.path not in known.files]
        with table_errors(self._heartbeats.uri):
            rows = [read_rows(self._heartbeats, file, pc.field("late")) for file in new if file.path in may_be_late]
        late = pa.concat_tables([NOTHING, *map(identities, rows)])
        every_late = _compact([known.late, late])
        before = [file for file in files if file.path in known.files]
        sought = ((new, every_late), (before, late))
        held = pa.concat_tables(held_in(self._heartbeats, *each, ~pc.field("late")) for each in sought)
        in_time = held.join(every_late, list(IDENTITY), join_type="left semi", use_threads=False)
        return _Hour(frozenset(file.path for file in files), every_late, _compact([known.in_time, in_time]))


def _compact(tables: Sequence[pa.Table]) -> pa.Table:
    """Copy all rows into one chunk: the few rows of a join hold a quarter of a megabyte, and these stay for a day."""
    return pa.concat_tables(tables).combine_chunks()


def late_since(watermark: datetime | None, now: datetime) -> datetime:
    """Return the event time from which late heartbeats are counted."""
    return (now if watermark is None else watermark) - LATE_WITHIN
