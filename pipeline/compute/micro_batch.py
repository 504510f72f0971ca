"""Computes a range of closed windows on Spark, and replaces them in the lake.

A run notes the current files of its windows (the fence), and lists its input. It checks that retention has not deleted
any input, writes its manifest and its files, and commits. One run replaces windows of `heartbeat_diffs` and
`stream_status`. Each custom table has its own runs.
"""

import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.slices import ANSWER, DIFFS, STATUSES, Work, cut, new_file
from tidemark.pipeline.errors import WindowNotClosed
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.diffs import StreamStatus
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.windowed import DiffRun, WindowedTable
from tidemark.pipeline.spark.executors import WINDOWS, answers_to, require_able
from tidemark.pipeline.spark.session import cores_of
from tidemark.pipeline.windows import Window, runs_of_neighbours

WrittenFiles = Sequence[Sequence[NewFile]]
"""The files that a run wrote, per table: at least one per window."""


@dataclass(frozen=True, slots=True)
class WindowBatch(ABC):
    """The input for computing windows of any table.

    `watermark` is None if there is no watermark yet. `run` is the run's name. `refuse_expired` raises WindowExpired if
    the lake no longer keeps the full input of a window. `tables` are in the order of their commits: a window counts as
    computed after the commit to the last one.
    """

    spark: SparkSession
    heartbeats: Heartbeats
    watermark: datetime | None
    run: str
    clock: Clock
    refuse_expired: Callable[[Sequence[Window]], None]
    tables: Sequence[WindowedTable]

    @property
    @abstractmethod
    def lookback(self) -> timedelta:
        """The length of the range before a window's start in which the window also reads heartbeats."""

    @abstractmethod
    def write(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
        """Compute windows from these files, and write the rows to new files under the run's name. Readers do not see
        the new files before a commit."""

    def note(self, windows: Sequence[Window]) -> Mapping[str, Any]:  # noqa: ARG002 (custom tables need it)
        """Return additional fields for the manifest of a run over these windows."""
        return {}


@dataclass(frozen=True, slots=True)
class MicroBatch(WindowBatch):
    """The input for computing `heartbeat_diffs` and `stream_status`.

    `tables` are the status table, then the diffs table. Diffs are last, because a window counts as computed once it has
    diffs. If a run ends between the two commits, the window is computed again.
    """

    tables: tuple[StreamStatus, WindowedTable]
    plan: DiffPlan

    @property
    def lookback(self) -> timedelta:
        return self.plan.lookback

    def write(self, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
        """Compute the windows in time slices, one Spark task per slice, without a shuffle. Each task returns the files
        that it wrote. A slice never spans a gap between windows. Raises ExecutorsUnable and CorruptObject."""
        stretches = runs_of_neighbours(windows)
        cores = cores_of(self.spark) if len(windows) > 1 and len(stretches) == 1 else 1
        slices = [one for stretch in stretches for one in cut(stretch, files, self.lookback, cores)]
        status, diffs = self.tables
        work = Work(run, self.plan, slices, self.heartbeats.storage_options, diffs.files, status.files)
        by_table = defaultdict[str, list[NewFile]](list)
        for answer in answers_to(self.spark, work, ANSWER).to_pylist():
            by_table[answer["table"]].append(new_file(answer))
        return by_table[STATUSES], by_table[DIFFS]


@dataclass(frozen=True, slots=True)
class ReplacedWindows:
    """The result of a run. `rows` maps a window's key to its row count in the table that was committed last.
    `input_rows` is the number of rows in the files that the run read. For each table, `superseded` lists the keys of
    the windows that another run had already replaced, from the same or newer input. This run left them as they are."""

    heartbeats_version: int
    watermark: datetime | None
    rows: Mapping[str, int]
    superseded: Sequence[Sequence[str]]
    input_rows: int = 0


def refuse_open(windows: Sequence[Window], watermark: datetime | None) -> None:
    """Raise WindowNotClosed unless the watermark has passed the end of every window."""
    still_open = [window for window in windows if not window.is_closed_at(watermark)]
    if still_open:
        where = "there is no watermark yet" if watermark is None else f"the watermark is at {iso(watermark)}"
        raise WindowNotClosed(
            f"windows that are not closed yet: {len(still_open)} of {len(windows)}; {where}, and the first open window "
            f"is {still_open[0]}. Nothing was written. Wait until the watermark has passed the end of the last window. "
            "To see what holds the watermark, run `tidemark explain`"
        )


def compute_windows(batch: WindowBatch, windows: Sequence[Window]) -> ReplacedWindows:
    """Compute windows, and replace them in each of the batch's tables. `windows` must be in order, and may have gaps.

    Guarantee: for each window and table, readers see all old or all new rows. The same input gives the same rows.

    Raises:
    - WindowNotClosed if the watermark has not passed the end of every window.
    - ExecutorsUnable if executors cannot run tidemark.
    - WindowExpired if the lake no longer keeps the full input of a window.
    - InvalidSettings if a table's windows have a different length than `windows`.
    - LakeError, and the errors of `batch.write`.

    After an error, earlier commits of the same call stay visible, such as the commit to another table.
    """
    refuse_open(windows, batch.watermark)
    for table in batch.tables:
        table.hold_to(windows[0].end - windows[0].start)
    require_able(batch.spark, WINDOWS)
    done = _attempt(batch, windows, as_open=True)
    # The run that committed first may have read older input than this run. If so, replace its rows.
    for stretch in runs_of_neighbours(_of_older_input(batch.tables, done, windows)):
        again = _attempt(batch, stretch)
        done = replace(
            done,
            rows={**done.rows, **again.rows},
            superseded=[[key for key in keys if key not in again.rows] for keys in done.superseded],
        )
    return done


def _attempt(batch: WindowBatch, windows: Sequence[Window], *, as_open: bool = False) -> ReplacedWindows:
    """Compute windows, and replace those that no other run has replaced since the tables were last refreshed. With
    `as_open`, tables that are already open are not refreshed first, which saves requests."""
    keys = [window.key for window in windows]
    # Take the fences before listing the input; otherwise an older computation could replace a newer one. Each may open
    # its table, which takes several requests in a bucket.
    fences = [fence for _, fence in read_ahead(lambda table: table.fence(keys, as_open=as_open), batch.tables)]
    files = batch.heartbeats.files_between(windows[0].start - batch.lookback, windows[-1].end)
    # Check after listing: retention raises its boundary before it removes a row, so the listed input is complete.
    batch.refuse_expired(windows)
    run = DiffRun(
        name=f"{batch.run}-{uuid.uuid4().hex[:8]}",
        windows=keys,
        heartbeats_version=files.version,
        watermark=batch.watermark or windows[-1].end,
        started_at=batch.clock.now(),
        **batch.note(windows),
    )
    with ThreadPoolExecutor(1) as pool:  # in parallel: in a bucket, the manifest takes a request
        manifest = pool.submit(batch.tables[-1].leave_manifest, run)
        written = batch.write(windows, files, run.name)
    manifest.result()
    replaced = [
        table.replace(run, fence, of_table)
        for table, fence, of_table in zip(batch.tables, fences, written, strict=True)
    ]
    return ReplacedWindows(
        heartbeats_version=files.version,
        watermark=batch.watermark,
        rows=replaced[-1],
        superseded=[[key for key in keys if key not in rows] for rows in replaced],
        input_rows=files.rows,
    )


def _of_older_input(tables: Sequence[WindowedTable], done: ReplacedWindows, windows: Sequence[Window]) -> list[Window]:
    """Return the windows that another run replaced, in at least one table, from older input than this run's."""
    found = (table.versions(keys) for table, keys in zip(tables, done.superseded, strict=True) if keys)
    older = {key for versions in found for key, version in versions.items() if version < done.heartbeats_version}
    return [window for window in windows if window.key in older]
