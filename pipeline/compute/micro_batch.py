"""One micro-batch: a range of closed windows, computed and replaced in the lake."""

import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.replacement import ReplacedWindows, WindowBatch, WrittenFiles, replace_windows
from tidemark.pipeline.compute.slices import ANSWER, DIFFS, STATUSES, Work, cut
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.stream_status import StatusKind, StreamStatus
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable
from tidemark.pipeline.spark.executors import answers_of, run_slices
from tidemark.pipeline.spark.session import cores_of
from tidemark.pipeline.windows import Window, runs_of_neighbours

SILENT_NAMED = 10
"""Silent streams that are named for each window; all are counted."""

Silent = Mapping[str, tuple[int, list[str]]]
"""The number of stopped streams and the first of their names, by window."""


@dataclass(frozen=True, slots=True)
class MicroBatch(WindowBatch):
    """The input of a micro-batch: a `WindowBatch`, and the two tables that it replaces."""

    diffs: WindowedTable
    status: StreamStatus
    plan: DiffPlan


def compute_windows(batch: MicroBatch, windows: Sequence[Window]) -> ReplacedWindows:
    """Compute windows, which may have gaps between them, and replace them in the lake, their diffs and their streams'
    status.

    Guarantee: readers see each window of each table whole, before or after; the same input gives the same rows. Raises
    WindowNotClosed, before anything is read or written, if the watermark has not passed every window; ExecutorsUnable,
    before anything is visible, where executors cannot run tidemark; and WindowExpired, before any of an attempt's
    windows is written.
    """
    # The status first: a window whose diffs stand counts as computed, and its status would not be asked for again.
    tables = batch.status, batch.diffs
    return replace_windows(batch, tables, windows, batch.plan.lookback, partial(_write, batch))


def _write(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
    """Slices of time, each a task that answers with what it wrote: no exchange. A gap is in no slice. Raises
    ExecutorsUnable."""
    stretches = runs_of_neighbours(windows)
    cores = cores_of(batch.spark) if len(windows) > 1 and len(stretches) == 1 else 1
    slices = [one for stretch in stretches for one in cut(stretch, files, batch.plan.lookback, cores)]
    work = Work(
        run=run,
        plan=batch.plan,
        slices=slices,
        storage_options=batch.heartbeats.storage_options,
        diffs=batch.diffs.files,
        status=batch.status.files,
        is_on_disk="://" not in batch.diffs.table.uri,
    )
    by_table = defaultdict[str, list[NewFile]](list)
    for answer in answers_of(batch.spark, len(slices), partial(run_slices, pickle.dumps(work), ANSWER), ANSWER):
        by_table[answer["table"]].append(NewFile(*(answer[name] for name in ("path", "window", "rows", "size"))))
    return by_table[STATUSES], by_table[DIFFS]


def silent_in(status: StreamStatus, windows: Iterable[str]) -> Silent:
    """The silent streams of computed windows, by their keys."""
    stopped: dict[str, list[str]] = {}
    for row in status.rows(set(windows), StatusKind.STOPPED).select([PARTITION, "stream_id"]).to_pylist():
        stopped.setdefault(row[PARTITION], []).append(row["stream_id"])
    return {key: (len(names), names[:SILENT_NAMED]) for key, names in stopped.items()}
