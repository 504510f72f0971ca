"""One micro-batch: a range of closed windows, computed and replaced in the lake."""

import logging
import os
import pickle
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.errors import WindowNotClosed
from tidemark.pipeline.lake.tables.diffs import HeartbeatDiffs
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats
from tidemark.pipeline.lake.tables.stream_status import Kind, StreamStatus
from tidemark.pipeline.lake.tables.windowed import PARTITION, DiffRun, Written
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.diffs import heartbeat_diffs, input_schema
from tidemark.pipeline.spark.executors import ANSWER, run_slices
from tidemark.pipeline.spark.plan import OF_MANY_VALUES, DiffPlan
from tidemark.pipeline.spark.silence import DIFFS_READ, stream_status
from tidemark.pipeline.spark.slices import DIFFS, STATUSES, Work, cut
from tidemark.pipeline.windows import Window, runs_of_neighbours

logger = logging.getLogger(__name__)

SILENT_NAMED = 20
"""Silent streams that are named for each window; all are counted."""

UNABLE: WeakSet[SparkSession] = WeakSet()
"""Sessions of which an executor lacks what computing in columns needs."""


class ExecutorUnable(Exception):
    """An executor has no tidemark, another one, or no Polars."""


@dataclass(frozen=True, slots=True)
class WrittenByRun:
    """The files that a run wrote, by table; None: all files in the run's folder."""

    diffs: Sequence[Written] | None = None
    status: Sequence[Written] | None = None


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of a micro-batch: rows by window, and by window how many streams stopped and the first of their names.

    `superseded` and `status_superseded` are windows whose diffs or status another run has replaced meanwhile, from
    input at least as new.
    """

    run: str
    heartbeats_version: int
    watermark: datetime | None
    rows: Mapping[str, int]
    superseded: Sequence[str] = ()
    status_superseded: Sequence[str] = ()
    silent: Mapping[str, tuple[int, list[str]]] = field(default_factory=dict)
    input_rows: int = 0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a micro-batch is computed with: a session, the lake's tables, the newest watermark, and the run's name."""

    spark: SparkSession
    heartbeats: Heartbeats
    diffs: HeartbeatDiffs
    status: StreamStatus
    plan: DiffPlan
    watermark: datetime | None
    run: str
    clock: Clock


Way = Callable[[MicroBatch, Sequence[Window], HeartbeatFiles, str], WrittenByRun]


def compute_windows(batch: MicroBatch, windows: Sequence[Window]) -> Computed:
    """Compute windows, which may have gaps between them, and replace them in the lake, their diffs and their streams'
    status.

    Guarantee: readers see each window of each table whole, before or after; the same input gives the same rows. Raises
    WindowNotClosed, before anything is read or written, if the watermark has not passed every window.
    """
    refuse_open(windows, batch.watermark)
    computed = _compute(batch, windows)
    # Another run that was first may have read less than we did: then what it wrote is replaced in its turn.
    if older := _of_older_input(batch, computed, windows):
        again = _compute(batch, older)
        computed = replace(
            computed,
            rows={**computed.rows, **again.rows},
            superseded=[key for key in computed.superseded if key not in again.rows],
            status_superseded=[key for key in computed.status_superseded if key not in again.rows],
        )
    return replace(computed, silent=_silent(batch.status, computed.rows))


def _of_older_input(batch: MicroBatch, computed: Computed, windows: Sequence[Window]) -> list[Window]:
    """The windows of which another run's diffs or status stand, made from less than this run has read."""
    others = batch.diffs.versions(computed.superseded), batch.status.versions(computed.status_superseded)
    older = {key for found in others for key, version in found.items() if version < computed.heartbeats_version}
    return [window for window in windows if window.key in older]


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


def _compute(batch: MicroBatch, windows: Sequence[Window]) -> Computed:
    """Compute the windows in columns, or by the DataFrame functions where executors cannot."""
    if batch.spark not in UNABLE:
        try:
            return _compute_by(_in_columns, batch, windows)
        except ExecutorUnable as unable:
            logger.info("an executor cannot compute in columns (%s): Spark's own functions do", unable)
            UNABLE.add(batch.spark)
    with naming_what_lacks():
        computed = [_compute_by(_by_frames, batch, stretch) for stretch in runs_of_neighbours(windows)]
    return replace(
        computed[0],
        heartbeats_version=min(each.heartbeats_version for each in computed),
        rows={key: rows for each in computed for key, rows in each.rows.items()},
        superseded=[key for each in computed for key in each.superseded],
        status_superseded=[key for each in computed for key in each.status_superseded],
        input_rows=sum(each.input_rows for each in computed),
    )


def _compute_by(way: Way, batch: MicroBatch, windows: Sequence[Window]) -> Computed:
    diffs, status, plan = batch.diffs, batch.status, batch.plan
    start, end = windows[0].start, windows[-1].end
    keys = [window.key for window in windows]
    # Before the input is listed, or a newer computation could be undone by an older one.
    fence, status_fence = diffs.fence(keys), status.fence(keys)
    files = batch.heartbeats.files_between(start - plan.lookback, end)
    attempt = DiffRun(
        name=f"{batch.run}-{uuid.uuid4().hex[:8]}",
        windows=keys,
        heartbeats_version=files.version,
        watermark=batch.watermark or end,
        started_at=batch.clock.now(),
    )
    diffs.leave_manifest(attempt)
    written = WrittenByRun()
    if files.files:
        logger.info("computing %d windows from %d files, %d rows", len(windows), len(files.files), files.rows)
        written = way(batch, windows, files, attempt.name)
    # The status first: a window whose diffs stand counts as computed, and nobody would ask for its status again.
    replaced_status = status.replace(attempt, status_fence, written.status)
    replaced = diffs.replace(attempt, fence, written.diffs)
    return Computed(
        run=attempt.name,
        heartbeats_version=files.version,
        watermark=batch.watermark,
        rows=replaced.rows,
        superseded=replaced.superseded,
        status_superseded=replaced_status.superseded,
        input_rows=files.rows,
    )


def _in_columns(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenByRun:
    """Slices of time, each a task that answers with what it wrote: no exchange. A gap is in no slice. Raises
    ExecutorUnable."""
    stretches = runs_of_neighbours(windows)
    cores = cores_of(batch.spark) if len(windows) > 1 and len(stretches) == 1 else 1
    slices = [one for stretch in stretches for one in cut(stretch, files, batch.plan, cores)]
    work = Work(
        run=run,
        plan=batch.plan,
        slices=slices,
        storage_options=batch.heartbeats.storage_options,
        diffs=batch.diffs.files,
        status=batch.status.files,
        is_on_disk="://" not in batch.diffs.table.uri,
    )
    numbers = batch.spark.range(0, len(slices), 1, len(slices))
    task = partial(run_slices, pickle.dumps(work))
    answers = numbers.mapInArrow(task, from_arrow_schema(ANSWER)).collect()
    for answer in answers:
        if answer["unable"] is not None:
            raise ExecutorUnable(answer["unable"])
    by_table = defaultdict[str, list[Written]](list)
    for answer in answers:
        by_table[answer["table"]].append(Written(*(answer[name] for name in ("path", "window", "rows", "size"))))
    return WrittenByRun(by_table[DIFFS], by_table[STATUSES])


def _by_frames(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenByRun:
    """DataFrame functions, on any Spark: they write into the run's folder, whose files are the run's."""
    diffs, status, plan = batch.diffs, batch.status, batch.plan
    start, end = windows[0].start, windows[-1].end
    read, folder = batch.spark.read.schema(input_schema(plan.fields)), diffs.folder_of(run)
    _write(heartbeat_diffs(read.parquet(*files.paths), plan, start, end), folder)
    written = batch.spark.read.schema(DIFFS_READ).parquet(folder)
    # Spark wants a file to read even where none reaches back: nothing of it is before the range then.
    before = read.parquet(*files.with_any_before(start) or files.paths)
    silent = stream_status(written, before, plan, start, end)
    # One file a window: next to nothing is written, and no stream is looked for in it.
    ordered = silent.repartition(PARTITION).sortWithinPartitions(PARTITION, "kind", "stream_id")
    _write(ordered, status.folder_of(run))
    return WrittenByRun()


def cores_of(spark: SparkSession) -> int:
    """How many tasks the session's Spark runs at once, as far as its configuration tells; else 2."""
    conf = spark.conf
    master = conf.get("spark.master", "") or ""
    local = re.match(r"local(\[(\d+|\*)|$)", master)
    if local:
        return os.cpu_count() or 2 if local[2] == "*" else int(local[2] or 1)
    return int(conf.get("spark.executor.instances", "1") or 1) * int(conf.get("spark.executor.cores", "2") or 2)


def _write(frame: DataFrame, folder: str) -> None:
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in frame.columns if column in OF_MANY_VALUES}
    frame.write.mode("error").options(**plain).partitionBy(PARTITION).parquet(folder)


def _silent(status: StreamStatus, windows: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """By window, how many streams stopped, and the first of their names."""
    stopped: dict[str, list[str]] = {}
    for row in status.rows(set(windows), Kind.STOPPED).select([PARTITION, "stream_id"]).to_pylist():
        stopped.setdefault(row[PARTITION], []).append(row["stream_id"])
    return {key: (len(names), names[:SILENT_NAMED]) for key, names in stopped.items()}
