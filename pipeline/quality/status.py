"""Reads the state of a lake for `tidemark status`. Reads only the lake."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, Lake
from tidemark.pipeline.lake.tables.heartbeats import LandedExtent
from tidemark.pipeline.lake.tables.table import data_files
from tidemark.pipeline.quality.audit import Audit, audit
from tidemark.pipeline.quality.failing import computed_at
from tidemark.pipeline.quality.late import Late, LateHeartbeats
from tidemark.pipeline.quality.missed.affected import MissedHeartbeats
from tidemark.pipeline.quality.missed.staleness import Staleness
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.windows import Window, Windowing

CHECKED_FOR_SECONDS = 3.0
"""Time limit of the check for missed heartbeats in `tidemark status`. The sensor `staleness` stores its progress."""

LATE_WITHIN, LOST_WITHIN = timedelta(days=1), timedelta(hours=1)
"""Range below the watermark in which late heartbeats are counted, in event time, and reach of the count of losses."""


@dataclass(frozen=True, slots=True)
class LakeReport:
    """The watermark's state, the extent of what landed, and the row count and commit time of each computed window."""

    state: WatermarkState
    landed: LandedExtent
    computed: Mapping[str, int]
    computed_at: Mapping[str, datetime]


def read_report(lake: Lake) -> LakeReport:
    """Read the report. Raises LakeError."""
    state, diffs, rows = lake.tracking_log().catch_up(), lake.table(HEARTBEAT_DIFFS), Counter[str]()
    files = data_files(diffs.current(), diffs.partition_column)
    for file in files:
        rows[file.partition] += file.rows
    return LakeReport(state, lake.heartbeats().extent(), dict(sorted(rows.items())), computed_at(files))


def read_waiting(lake: Lake, windowing: Windowing, lookback: timedelta, watermark: datetime | None) -> list[Window]:
    """Return the windows that are closed but not computed yet, in order. Raises LakeError."""
    closed = lake.kept_windows(windowing).closed(watermark)
    due = lake.window_index(windowing, lookback).update().due(closed)
    return sorted(windowing.numbered(number) for stretch in due for number in stretch)


@dataclass(frozen=True, slots=True)
class Losses:
    """Heartbeats missed and not repaired, late within a day, and lost outside of the pipeline within an hour."""

    missed: MissedHeartbeats
    late: Late
    lost: Audit


def read_losses(
    lake: Lake, windowing: Windowing, lookback: timedelta, now: datetime, clock: Clock | None = None
) -> Losses:
    """Read the losses, continuing from the checkpoint in the lake. With a clock, the check for missed heartbeats stops
    after CHECKED_FOR_SECONDS and reports how much is left. Raises LakeError."""
    log, staleness = lake.tracking_log(), Staleness.restored(lake, windowing, lookback)
    began = 0.0 if clock is None else clock.monotonic()
    return Losses(
        missed=staleness.check(lambda: clock is None or clock.monotonic() - began < CHECKED_FOR_SECONDS),
        late=LateHeartbeats(staleness.heartbeats, windowing).since(late_since(log.newest_watermark(), now)),
        lost=audit(log, staleness.heartbeats, lake.quarantine(), now - LOST_WITHIN),
    )


def late_since(watermark: datetime | None, now: datetime) -> datetime:
    """Return the event time from which late heartbeats are counted."""
    return (now if watermark is None else watermark) - LATE_WITHIN
