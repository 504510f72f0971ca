"""One micro-batch: a range of closed windows, computed and replaced in the lake."""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from pipeline.clock import Clock, iso
from pipeline.errors import WindowNotClosed
from pipeline.heartbeat import FieldKind
from pipeline.lake.diffs import DiffRun, HeartbeatDiffs, Replaced
from pipeline.lake.heartbeats import Heartbeats
from pipeline.spark.diffs import heartbeat_diffs, input_schema, silent_streams
from pipeline.windows import Window, runs_of_neighbours

logger = logging.getLogger(__name__)

SILENT_NAMED = 20
"""Silent streams that are named for each window; all are counted."""


@dataclass(frozen=True, slots=True)
class DiffPlan:
    """What a diff depends on beside its input."""

    fields: Mapping[str, FieldKind]
    lookback: timedelta
    period: timedelta
    window_length: timedelta


@dataclass(frozen=True, slots=True)
class Computed:
    """What a micro-batch did: rows by window, the windows that another run had computed meanwhile from input at
    least as new, and by window how many streams were silent and the first of their names."""

    run: str
    heartbeats_version: int
    rows: Mapping[str, int]
    superseded: Sequence[str] = ()
    silent: Mapping[str, tuple[int, list[str]]] = field(default_factory=dict)
    input_rows: int = 0


def compute_windows(
    spark: SparkSession,
    windows: Sequence[Window],
    *,
    heartbeats: Heartbeats,
    diffs: HeartbeatDiffs,
    plan: DiffPlan,
    watermark: datetime | None,
    run: str,
    clock: Clock,
) -> Computed:
    """Compute a contiguous range of windows and replace them in the lake.

    Guarantee: readers see each window whole, before or after; the same input gives the same rows. Raises
    WindowNotClosed, before anything is read or written, if the watermark has not passed every window.
    """
    refuse_open(windows, watermark)
    compute = partial(_compute, spark, heartbeats, diffs, plan, watermark, run, clock)
    computed = compute(windows)
    # Another run that was first may have read less than we did: then what it wrote is replaced in its turn.
    versions = diffs.versions(computed.superseded)
    older = [w for w in windows if w.key in versions and versions[w.key] < computed.heartbeats_version]
    for stretch in runs_of_neighbours(older):
        again = compute(stretch)
        computed = replace(
            computed,
            rows={**computed.rows, **again.rows},
            superseded=[key for key in computed.superseded if key not in again.rows],
            silent={**computed.silent, **again.silent},
        )
    return computed


def refuse_open(windows: Sequence[Window], watermark: datetime | None) -> None:
    """Raise WindowNotClosed if the watermark has not passed every window."""
    still_open = [window for window in windows if not window.is_closed_at(watermark)]
    if still_open:
        where = "there is no watermark yet" if watermark is None else f"the watermark is at {iso(watermark)}"
        raise WindowNotClosed(
            f"{len(still_open)} of {len(windows)} windows cannot be trusted yet, the first is {still_open[0]}: {where}"
            ". Nothing was written. Wait until the watermark has passed the window's end; `tidemark explain` says "
            "what holds it"
        )


def _compute(
    spark: SparkSession,
    heartbeats: Heartbeats,
    diffs: HeartbeatDiffs,
    plan: DiffPlan,
    watermark: datetime | None,
    run: str,
    clock: Clock,
    windows: Sequence[Window],
) -> Computed:
    start, end = windows[0].start, windows[-1].end
    keys = [window.key for window in windows]
    fence = diffs.fence(keys)  # before the input is listed, or a newer computation could be undone by an older one
    files = heartbeats.files_between(start - plan.lookback, end)
    attempt = DiffRun(
        name=f"{run}-{uuid.uuid4().hex[:8]}",
        windows=keys,
        heartbeats_version=files.version,
        watermark=watermark or end,
        started_at=clock.now(),
    )
    diffs.leave_manifest(attempt)
    silent: dict[str, tuple[int, list[str]]] = {}
    if files.paths:
        logger.info("computing %d windows from %d files, %d rows", len(windows), len(files.paths), files.rows)
        frame = spark.read.schema(input_schema(plan.fields)).parquet(*files.paths)
        _write(_diffs(frame, plan, start, end), diffs.folder_of(attempt.name))
        silent = _silent(frame, plan, start, end)
    replaced: Replaced = diffs.replace(attempt, fence)
    return Computed(
        run=attempt.name,
        heartbeats_version=files.version,
        rows=replaced.rows,
        superseded=replaced.superseded,
        silent=silent,
        input_rows=files.rows,
    )


def _diffs(frame: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> DataFrame:
    return heartbeat_diffs(
        frame,
        plan.fields,
        start=start,
        end=end,
        lookback=plan.lookback,
        period=plan.period,
        window_length=plan.window_length,
    )


def _write(frame: DataFrame, folder: str) -> None:
    frame.write.mode("error").partitionBy("window").parquet(folder)


def _silent(frame: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> dict[str, tuple[int, list[str]]]:
    streams = silent_streams(frame, start=start, end=end, lookback=plan.lookback, length=plan.window_length)
    by_window = (
        streams.distinct()
        .groupBy("window")
        .agg(
            F.count("*").alias("count"),
            F.slice(F.sort_array(F.collect_list("stream_id")), 1, SILENT_NAMED).alias("names"),
        )
    )
    return {row["window"]: (row["count"], list(row["names"])) for row in by_window.collect()}
