"""Where everything stands, told from the lake alone: what `tidemark status` prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.clock import from_us
from pipeline.lake.layout import Lake
from pipeline.lake.tables import data_files
from pipeline.lake.tracking_log import TrackingLog
from pipeline.watermark.standing import Standing
from pipeline.windows import Window, Windowing, due


@dataclass(frozen=True, slots=True)
class LakeReport:
    """The newest decision, and what the tables hold. `waiting` are closed windows that are not computed yet."""

    standing: Standing
    landed_rows: int
    landed_through: datetime | None
    quarantined: Mapping[str, int]
    computed: Mapping[str, int]
    computed_at: Mapping[str, datetime]
    waiting: list[Window]


def read_report(lake: Lake, windowing: Windowing, log: TrackingLog | None = None) -> LakeReport:
    """Read it. Who reads again and again passes the same `log`, which then only catches up. Raises LakeError where
    the lake cannot be read."""
    standing = (log or lake.tracking_log()).catch_up()
    heartbeats, diffs = lake.heartbeats(), lake.diffs()
    table = diffs.table.current()
    rows: dict[str, int] = {}
    for file in () if table is None else data_files(table, diffs.table.partition_column):
        rows[file.partition] = rows.get(file.partition, 0) + file.rows
    landed = heartbeats.extent()
    since = landed.oldest_event_time
    closed = [] if since is None else windowing.closed_at(standing.watermark, since)
    return LakeReport(
        standing=standing,
        landed_rows=landed.rows,
        landed_through=landed.newest_event_time,
        quarantined=lake.quarantine().reasons(),
        computed=dict(sorted(rows.items())),
        computed_at={} if table is None else _committed_at(diffs.table.committed_ms()),
        waiting=due(closed, set(rows), heartbeats.hours()),
    )


def _committed_at(milliseconds: Mapping[str, int]) -> dict[str, datetime]:
    return {key: from_us(value * 1000) for key, value in milliseconds.items()}
