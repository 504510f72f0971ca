"""Replaces windows in a run's tables: fence, input, retention boundary, manifest, files, commit, in this order.

All windowed tables are replaced this way: `heartbeat_diffs` and `stream_status` together, each custom table separately.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.errors import WindowNotClosed
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.windowed import DiffRun, WindowedTable
from tidemark.pipeline.spark.executors import WINDOWS, require_able
from tidemark.pipeline.windows import Window, runs_of_neighbours

WrittenFiles = Sequence[Sequence[NewFile] | None]
"""The files that a run wrote, for each of its tables; None: all files in the run's folder in that table."""

Write = Callable[[Sequence[Window], HeartbeatFiles, str], WrittenFiles]
"""Computes windows from their input and writes the files of a run, given its name. The files are not visible yet."""


Note = Callable[[Sequence[Window]], Mapping[str, Any]]
"""Returns the additional manifest fields of a run over these windows."""


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """The input for computing windows of any table: a session, the heartbeats, the newest watermark, and the run's
    name. `refuse_expired` raises WindowExpired for windows whose input is no longer kept in full."""

    spark: SparkSession
    heartbeats: Heartbeats
    watermark: datetime | None
    run: str
    clock: Clock
    refuse_expired: Callable[[Sequence[Window]], None]


@dataclass(frozen=True, slots=True)
class ReplacedWindows:
    """The result of a run: the row count of each window in the last table and, by table, the windows that another run
    has replaced meanwhile, from input at least as new."""

    heartbeats_version: int
    watermark: datetime | None
    rows: Mapping[str, int]
    superseded: Sequence[Sequence[str]]
    input_rows: int = 0


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


def replace_windows(
    batch: WindowBatch,
    tables: Sequence[WindowedTable],
    windows: Sequence[Window],
    lookback: timedelta,
    write: Write,
    note: Note = lambda _: {},
) -> ReplacedWindows:
    """Compute windows, given in order and possibly with gaps, and replace them in each table, in the order of the
    tables. A window counts as computed once the last table has it.

    Guarantee: readers see the old or the new rows of each window of each table, never a mix. Raises WindowNotClosed,
    before anything is read or written, if the watermark has not passed every window, and ExecutorsUnable if executors
    cannot run tidemark. Raises WindowExpired, LakeError, and what `write` raises; then nothing is visible, or only the
    commits to earlier tables or of an earlier attempt.
    """
    refuse_open(windows, batch.watermark)
    for table in tables:
        table.hold_to(windows[0].end - windows[0].start)
    require_able(batch.spark, WINDOWS)
    attempt = partial(_attempt, batch, tables, lookback, write, note)
    done = attempt(windows)
    # Another run that was first may have read older input than this run: then replace its rows in turn.
    for stretch in runs_of_neighbours(_of_older_input(tables, done, windows)):
        again = attempt(stretch)
        done = replace(
            done,
            rows={**done.rows, **again.rows},
            superseded=[[key for key in keys if key not in again.rows] for keys in done.superseded],
        )
    return done


def _attempt(
    batch: WindowBatch,
    tables: Sequence[WindowedTable],
    lookback: timedelta,
    write: Write,
    note: Note,
    windows: Sequence[Window],
) -> ReplacedWindows:
    keys = [window.key for window in windows]
    # Before the input is listed, or an older computation could replace a newer one.
    fences = [table.fence(keys) for table in tables]
    files = batch.heartbeats.files_between(windows[0].start - lookback, windows[-1].end)
    # After the input is listed: retention raises its boundary before it removes a row, so the listed input is complete.
    batch.refuse_expired(windows)
    run = DiffRun(
        name=f"{batch.run}-{uuid.uuid4().hex[:8]}",
        windows=keys,
        heartbeats_version=files.version,
        watermark=batch.watermark or windows[-1].end,
        started_at=batch.clock.now(),
        **note(windows),
    )
    tables[-1].leave_manifest(run)
    written = write(windows, files, run.name)
    replaced = [
        table.replace(run, fence, of_table) for table, fence, of_table in zip(tables, fences, written, strict=True)
    ]
    return ReplacedWindows(
        heartbeats_version=files.version,
        watermark=batch.watermark,
        rows=replaced[-1].rows,
        superseded=[of_table.superseded for of_table in replaced],
        input_rows=files.rows,
    )


def _of_older_input(tables: Sequence[WindowedTable], done: ReplacedWindows, windows: Sequence[Window]) -> list[Window]:
    """Return the windows for which a table has another run's rows, computed from older input than this run's."""
    found = (table.versions(keys) for table, keys in zip(tables, done.superseded, strict=True))
    older = {key for versions in found for key, version in versions.items() if version < done.heartbeats_version}
    return [window for window in windows if window.key in older]
