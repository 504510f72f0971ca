"""Late heartbeats: what first landed below the watermark, by window and by stream; late copies are counted apart.

An event hour is read only if the statistics of a file allow a late row, and again only when its files change.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.clock import duration_us, from_us
from tidemark.pipeline.lake.layout import HEARTBEATS, Lake
from tidemark.pipeline.lake.tables.heartbeats import HOUR_FORMAT, IDENTITY, IDENTITY_SOURCE, PARTITION, identities
from tidemark.pipeline.lake.tables.table import microseconds, table_errors
from tidemark.pipeline.windows import Windowing


@dataclass(frozen=True, slots=True)
class Late:
    """Counts of event times from the hour of `since` on: landed rows, late heartbeats by window and by stream, and
    late rows that are copies. A heartbeat is late if no copy of it landed in time, as in `heartbeat_diffs`."""

    since: datetime
    rows: int = 0
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    copies: int = 0

    @property
    def total(self) -> int:
        """The number of late heartbeats."""
        return sum(self.by_window.values())

    @property
    def share(self) -> float:
        """Late heartbeats per row that landed."""
        return self.total / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class _Hour:
    """The counts of an event hour."""

    by_window: Counter[str]
    by_stream: Counter[str]
    copies: int


class LateHeartbeats:
    """Counts the late heartbeats of one lake again and again. One user at a time."""

    def __init__(self, lake: Lake, windowing: Windowing) -> None:
        self._heartbeats = lake.table(HEARTBEATS)
        self._windowing = windowing
        self._hours: dict[tuple[str, frozenset[str]], _Hour] = {}
        """The counts of each hour while it had these files."""

    def since(self, since: datetime) -> Late:
        """Count what has event times from the hour of `since` on. Raises LakeError."""
        table = self._heartbeats.current()
        if table is None:
            return Late(since)
        first = since.strftime(HOUR_FORMAT)
        files = pa.table(table.get_add_actions(flatten=True))
        files = files.filter(pc.greater_equal(files[f"partition.{PARTITION}"], first))
        self._hours = {key: self._hours.get(key) or self._counted(table, key[0]) for key in _with_late_rows(files)}
        by_window, by_stream = Counter[str](), Counter[str]()
        for counted in self._hours.values():
            by_window.update(counted.by_window)
            by_stream.update(counted.by_stream)
        return Late(
            since=since,
            rows=pc.sum(files["num_records"]).as_py() or 0,
            by_window=dict(sorted(by_window.items())),
            by_stream=dict(by_stream.most_common()),
            copies=sum(counted.copies for counted in self._hours.values()),
        )

    def _counted(self, table: DeltaTable, hour: str) -> _Hour:
        with table_errors(self._heartbeats.uri):
            dataset = table.to_pyarrow_dataset(file_pruning_predicate=[(PARTITION, "=", hour)])
            late = dataset.to_table(columns=list(IDENTITY_SOURCE), filter=pc.field("late"), use_threads=False)
            of_these_streams = ~pc.field("late") & pc.field("stream_id").isin(pc.unique(late["stream_id"]))
            in_time = dataset.to_table(columns=list(IDENTITY_SOURCE), filter=of_these_streams, use_threads=False)
        each = identities(late).group_by(list(IDENTITY), use_threads=False).aggregate([])
        each = each.join(identities(in_time), list(IDENTITY), join_type="left anti", use_threads=False)
        event_us = microseconds(each["event_time"])
        starts = Counter((event_us - event_us % duration_us(self._windowing.length)).tolist())
        return _Hour(
            by_window=Counter({self._windowing.containing(from_us(start)).key: n for start, n in starts.items()}),
            by_stream=Counter(each["stream_id"].to_pylist()),
            copies=late.num_rows - each.num_rows,
        )


def _with_late_rows(files: pa.Table) -> list[tuple[str, frozenset[str]]]:
    """Each event hour in which some file may hold late rows, by its statistics, with all its files."""
    may_hold = pa.chunked_array([pa.array([True] * files.num_rows, pa.bool_())])
    if "max.late" in files.column_names:
        may_hold = pc.fill_null(files["max.late"].cast(pa.bool_()), True)
    hour = f"partition.{PARTITION}"
    chosen = files.filter(pc.is_in(files[hour], files[hour].filter(may_hold)))
    by_hour = chosen.group_by(hour, use_threads=False).aggregate([("path", "list")])
    return [(row[hour], frozenset(row["path_list"])) for row in by_hour.to_pylist()]
