"""One micro-batch: a range of closed windows, computed and replaced in the lake."""

import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.replacement import ReplacedWindows, WindowBatch, WrittenFiles, replace_windows
from tidemark.pipeline.compute.slices import ANSWER, DIFFS, STATUSES, Work, cut
from tidemark.pipeline.lake.tables.diffs import StatusKind, StreamStatus
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable
from tidemark.pipeline.spark.executors import answers_of, run_slices
from tidemark.pipeline.spark.session import cores_of
from tidemark.pipeline.windows import Window, runs_of_neighbours

SILENT_NAMED = 10
"""Maximum number of silent streams named per window; all are counted."""

Silent = Mapping[str, tuple[int, list[str]]]
"""The number of stopped streams and their first SILENT_NAMED names, by window."""


@dataclass(frozen=True, slots=True)
class MicroBatch(WindowBatch):
    """The input of a micro-batch: a `WindowBatch`, and the two tables in which it replaces windows."""

    diffs: WindowedTable
    status: StreamStatus
    plan: DiffPlan


def compute_windows(batch: MicroBatch, windows: Sequence[Window]) -> ReplacedWindows:
    """Compute windows, which may have gaps between them, and replace their diffs and stream status in the lake.

    Guarantee: readers see the old or the new rows of each window of each table, never a mix; the same input gives the
    same rows. Raises WindowNotClosed, before anything is read or written, if the watermark has not passed every window;
    ExecutorsUnable, before anything is visible, if executors cannot run tidemark; and WindowExpired, before any of an
    attempt's windows is written.
    """
    # The status first: a window with diffs counts as computed, and its status would not be requested again.
    tables = batch.status, batch.diffs
    return replace_windows(batch, tables, windows, batch.plan.lookback, partial(_write, batch))


def _write(batch: MicroBatch, windows: Sequence[Window], files: HeartbeatFiles, run: str) -> WrittenFiles:
    """Compute the windows in time slices, one task per slice, without an exchange. Each task answers with the files it
    wrote. No slice spans a gap. Raises ExecutorsUnable."""
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
    """Return the silent streams of computed windows, given the windows' keys."""
    stopped: dict[str, list[str]] = {}
    for row in status.rows(set(windows), StatusKind.STOPPED).select([PARTITION, "stream_id"]).to_pylist():
        stopped.setdefault(row[PARTITION], []).append(row["stream_id"])
    return {key: (len(names), names[:SILENT_NAMED]) for key, names in stopped.items()}
