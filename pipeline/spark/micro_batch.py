"""One micro-batch: a range of closed windows, computed and replaced in the lake."""

import logging
import os
import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from operator import add
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.lake.tables.diffs import HeartbeatDiffs
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats
from tidemark.pipeline.lake.tables.stream_status import Kind, StreamStatus
from tidemark.pipeline.lake.tables.windowed import PARTITION, Written
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.diffs import heartbeat_diffs, input_schema
from tidemark.pipeline.spark.executors import ANSWER, run_slices
from tidemark.pipeline.spark.plan import OF_MANY_VALUES, DiffPlan
from tidemark.pipeline.spark.replacement import Outcome, Tables, WrittenFiles, refuse_open, replace_windows
from tidemark.pipeline.spark.silence import DIFFS_READ, stream_status
from tidemark.pipeline.spark.slices import DIFFS, STATUSES, Work, cut
from tidemark.pipeline.windows import Window, runs_of_neighbours

logger = logging.getLogger(__name__)

SILENT_NAMED = 20
"""Silent streams that are named for each window; all are counted."""

UNABLE: WeakSet[SparkSession] = WeakSet()
"""Sessions of which an executor lacks what computing in columns needs."""


NOTHING: WrittenFiles = (None, None)
"""No task tells of files: those of the status and of the diffs are in the run's folders, if there are any."""


class ExecutorUnable(Exception):
    """An executor has no tidemark, another one, or no Polars."""


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
    """What a micro-batch is computed with: a session, the lake's tables, the newest watermark, and the run's name.
    `refuse_expired` raises WindowExpired for windows whose input is no longer kept in full."""

    spark: SparkSession
    heartbeats: Heartbeats
    diffs: HeartbeatDiffs
    status: StreamStatus
    plan: DiffPlan
    watermark: datetime | None
    run: str
    clock: Clock
    refuse_expired: Callable[[Sequence[Window]], None]


def compute_windows(batch: MicroBatch, windows: Sequence[Window]) -> Computed:
    """Compute windows, which may have gaps between them, and replace them in the lake, their diffs and their streams'
    status.

    Guarantee: readers see each window of each table whole, before or after; the same input gives the same rows. Raises
    WindowNotClosed, before anything is read or written, if the watermark has not passed every window, and
    WindowExpired, before any of an attempt's windows is written.
    """
    refuse_open(windows, batch.watermark)
    done = _compute(batch, windows)
    status_superseded, superseded = done.superseded
    return Computed(
        run=done.run,
        heartbeats_version=done.heartbeats_version,
        watermark=batch.watermark,
        rows=done.rows,
        superseded=superseded,
        status_superseded=status_superseded,
        silent=_silent(batch.status, done.rows),
        input_rows=done.input_rows,
    )


def _compute(batch: MicroBatch, windows: Sequence[Window]) -> Outcome:
    """Compute the windows in columns, or by the DataFrame functions where executors cannot."""
    tables = Tables(
        # The status first: a window whose diffs stand counts as computed, and nobody would ask for its status again.
        (batch.status, batch.diffs),
        batch.heartbeats,
        batch.plan.lookback,
        batch.watermark,
        batch.run,
        batch.clock,
        batch.refuse_expired,
    )
    if batch.spark not in UNABLE:
        try:
            return replace_windows(tables, windows, partial(_in_columns, batch))
        except ExecutorUnable as unable:
            logger.info("an executor cannot compute in columns (%s): Spark's own functions do", unable)
            UNABLE.add(batch.spark)
    with naming_what_lacks():
        stretches = runs_of_neighbours(windows)
        done = (replace_windows(tables, stretch, partial(_by_frames, batch)) for stretch in stretches)
        return reduce(add, done)


def _in_columns(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
    """Slices of time, each a task that answers with what it wrote: no exchange. A gap is in no slice. Raises
    ExecutorUnable."""
    if not files.files:
        return NOTHING
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
    return by_table[STATUSES], by_table[DIFFS]


def _by_frames(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
    """DataFrame functions, on any Spark: they write into the run's folder, whose files are the run's."""
    if not files.files:
        return NOTHING
    diffs, status, plan = batch.diffs, batch.status, batch.plan
    start, end = windows[0].start, windows[-1].end
    read, folder = batch.spark.read.schema(input_schema(plan.fields)), diffs.folder_of(run)
    write_by_window(heartbeat_diffs(read.parquet(*files.paths), plan, start, end), folder)
    written = batch.spark.read.schema(DIFFS_READ).parquet(folder)
    # Spark wants a file to read even where none reaches back: nothing of it is before the range then.
    before = read.parquet(*files.with_any_before(start) or files.paths)
    silent = stream_status(written, before, plan, start, end)
    # One file a window: next to nothing is written, and no stream is looked for in it.
    ordered = silent.repartition(PARTITION).sortWithinPartitions(PARTITION, "kind", "stream_id")
    write_by_window(ordered, status.folder_of(run))
    return NOTHING


def cores_of(spark: SparkSession) -> int:
    """How many tasks the session's Spark runs at once, as far as its configuration tells; else 2."""
    conf = spark.conf
    master = conf.get("spark.master", "") or ""
    local = re.match(r"local(\[(\d+|\*)|$)", master)
    if local:
        return os.cpu_count() or 2 if local[2] == "*" else int(local[2] or 1)
    return int(conf.get("spark.executor.instances", "1") or 1) * int(conf.get("spark.executor.cores", "2") or 2)


def write_by_window(frame: DataFrame, folder: str) -> None:
    """Write a frame as Parquet, by its column `window`, into a folder that is not there yet."""
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in frame.columns if column in OF_MANY_VALUES}
    frame.write.mode("error").options(**plain).partitionBy(PARTITION).parquet(folder)


def _silent(status: StreamStatus, windows: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """By window, how many streams stopped, and the first of their names."""
    stopped: dict[str, list[str]] = {}
    for row in status.rows(set(windows), Kind.STOPPED).select([PARTITION, "stream_id"]).to_pylist():
        stopped.setdefault(row[PARTITION], []).append(row["stream_id"])
    return {key: (len(names), names[:SILENT_NAMED]) for key, names in stopped.items()}
