"""Finds the windows of a range that must be recomputed, and those that cannot be. Checks every file and changes none.

A window is *missing* (closed, but not computed), *stale* (heartbeats landed after it was computed) or *damaged* (one of
its files, or its run's manifest, is gone or unreadable). Recomputing repairs all three if the heartbeats of the window
are readable. A damaged file of heartbeats is reported with the windows that need it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import (
    CorruptObject,
    LakeError,
    LakeFull,
    LakeUnreachable,
    LakeUnwritable,
    NewerFormat,
    ObjectMissing,
)
from tidemark.pipeline.lake.layout import HEARTBEATS, OWN_TABLES, STREAM_STATUS, Lake
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.table import DataFile, LakeTable, data_files, table_errors
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable, run_of
from tidemark.pipeline.quality.missed.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import KEY_FORMAT, Window, runs_of_neighbours

Progress = Callable[[str, int, int], None]
"""Progress callback: called with what is being checked, the number done, and the total."""


class Fault(StrEnum):
    """A reason to recompute a window. The first that applies is the window's fault."""

    DAMAGED = "damaged"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Broken:
    """A window to be recomputed, with all reasons, and what blocks the recomputation, if anything."""

    window: Window
    fault: Fault
    reasons: Sequence[str]
    blocked_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DamagedInput:
    """A missing or unreadable file of `heartbeats`, and the windows of the range that need it."""

    path: str
    why: str
    windows: Sequence[Window]


@dataclass(frozen=True, slots=True)
class DamagedOwn:
    """A window of a custom table with a missing or unreadable file."""

    table: str
    window: str
    why: str


@dataclass(frozen=True, slots=True)
class Integrity:
    """The findings of a check of the windows in `[start, end)`: the number of windows and of their files, the broken
    windows, the damaged files of `heartbeats` (`inputs`), the damaged windows of custom tables (`own`), and a sentence
    for whatever could not be determined (`unknown`)."""

    start: datetime
    end: datetime
    windows: int
    files: int
    broken: Sequence[Broken] = ()
    inputs: Sequence[DamagedInput] = ()
    unknown: Sequence[str] = ()
    own: Sequence[DamagedOwn] = ()

    @property
    def repairable(self) -> list[list[Window]]:
        """The broken windows that can be recomputed, as contiguous stretches, in order."""
        return runs_of_neighbours(broken.window for broken in self.broken if not broken.blocked_by)

    @property
    def blocked(self) -> list[Broken]:
        """The broken windows that cannot be recomputed yet."""
        return [broken for broken in self.broken if broken.blocked_by]


def check_windows(
    lake: Lake, settings: Settings, start: datetime, end: datetime, *, watermark: datetime | None, tell: Progress
) -> Integrity:
    """Check each window that lies entirely in `[start, end)`; `watermark` determines which are closed. Compares each
    file's presence, size, footer and row count with the table; does not read values. Raises LakeError if a table's own
    log cannot be read, or the lake is unreachable."""
    windowing, lookback = settings.windowing, settings.windows.lookback
    windows = {window.key: window for window in windowing.between(start, end)}
    diffs = lake.diffs()
    files = {table: _files_of(table, windows) for table in (diffs.table, lake.table(STREAM_STATUS))}
    reasons = _damaged(diffs, files, tell)
    faults = dict.fromkeys(reasons, Fault.DAMAGED)

    def blame(window: Window, fault: Fault, why: str) -> None:
        if window.key in windows:
            faults.setdefault(window.key, fault)
            reasons[window.key].append(why)

    closed = lake.kept_windows(windowing).closed(watermark)
    for stretch in lake.window_index(windowing, lookback).update().due(closed):
        for window in map(windowing.numbered, stretch):
            blame(window, Fault.MISSING, "it is closed but not computed")
    unknown = []
    tell("what landed since windows were computed", 0, 1)
    try:
        for stale in Staleness.restored(lake, windowing, lookback).check().stale:
            blame(stale.window, Fault.STALE, stale.why)
    except (LakeUnreachable, NewerFormat):
        raise
    except (LakeError, pa.ArrowException) as error:
        unknown.append(f"tidemark cannot know which windows are stale until the rest is repaired: {error}")
    needed = dict[DataFile, list[Window]]()
    for file in data_files(lake.table(HEARTBEATS).current(), EVENT_HOUR):
        if reached := [each for each in windows.values() if file.may_have(each.start - lookback, each.end)]:
            needed[file] = reached
    heartbeats = lake.table(HEARTBEATS)
    inputs = [
        DamagedInput(heartbeats.file_location(file.path), why, needed[file])
        for file, why in _looked_at(heartbeats, list(needed), tell)
    ]
    broken = [
        Broken(windows[key], faults[key], reasons[key], _blocks(windows[key], inputs, watermark))
        for key in sorted(faults)
    ]
    own, (first, last) = list[DamagedOwn](), (moment.strftime(KEY_FORMAT) for moment in (start, end))
    for name in lake.own_tables():
        table = lake.table(f"{OWN_TABLES}/{name}")
        of_range = [file for file in data_files(table.current(), PARTITION) if first <= file.partition < last]
        for file, why in _looked_at(table, of_range, tell):
            own.append(DamagedOwn(name, file.partition, f"{table.file_location(file.path)}: {why}"))
    return Integrity(start, end, len(windows), sum(map(len, files.values())), broken, inputs, unknown, own)


def forget_damaged(lake: Lake, damaged: Iterable[DamagedOwn]) -> None:
    """Remove the damaged windows from their tables, whose sensor then has them recomputed. Raises LakeError."""
    by_table = defaultdict[str, set[str]](set)
    for one in damaged:
        by_table[one.table].add(one.window)
    for name, keys in by_table.items():
        lake.own_table(name).forget(keys)


def _files_of(table: LakeTable, windows: Mapping[str, Window]) -> list[DataFile]:
    """Return the files that the newest version of a windowed table lists for these windows."""
    try:
        current = table.current()
    except CorruptObject as error:
        raise CorruptObject(
            f"{error}. Without a backup, move {table.uri} away and run the repair: every window can be recomputed"
        ) from error
    return [file for file in data_files(current, table.partition_column) if file.partition in windows]


def _damaged(
    diffs: WindowedTable, files: Mapping[LakeTable, Sequence[DataFile]], tell: Progress
) -> defaultdict[str, list[str]]:
    """Check the files of computed windows and the manifests of their runs. Returns the reasons by window."""
    found, computed_by = defaultdict[str, list[str]](list), defaultdict[str, set[str]](set)
    for table, of_table in files.items():
        for file, why in _looked_at(table, of_table, tell):
            found[file.partition].append(f"{table.file_location(file.path)}: {why}")
        runs_of = defaultdict[str, set[str]](set)
        for file in of_table:
            runs_of[file.partition].add(run_of(file.path))
            computed_by[run_of(file.path)].add(file.partition)
        for key, runs in runs_of.items():
            if len(runs) > 1:
                found[key].append(f"it has rows of several runs: {', '.join(sorted(runs))}")
    for run in sorted(computed_by):
        try:
            diffs.manifest(run)
        except (ObjectMissing, CorruptObject) as error:
            state = "is gone" if isinstance(error, ObjectMissing) else "cannot be read"
            for key in computed_by[run]:
                found[key].append(f"the manifest of its run {run} {state}: its input is not known")
    return found


def _blocks(window: Window, inputs: Iterable[DamagedInput], watermark: datetime | None) -> list[str]:
    blocks = [f"{damaged.path} is damaged" for damaged in inputs if window in damaged.windows]
    if not window.is_closed_at(watermark):
        where = "is not known" if watermark is None else f"is at {iso(watermark)}"
        blocks.append(f"the watermark {where}, and a run computes only closed windows")
    return blocks


def _looked_at(table: LakeTable, files: Sequence[DataFile], tell: Progress) -> Iterator[tuple[DataFile, str]]:
    """Yield the damaged files among `files` of a table, each with what is wrong."""
    if not files:
        return
    what = f"files of {table.uri.rpartition('/')[2]}"
    tell(what, 0, len(files))
    for number, (file, why) in enumerate(read_ahead(partial(_damage_of, table.folder), files), start=1):
        if why is not None:
            yield file, why
        tell(what, number, len(files))


def _damage_of(place: pafs.FileSystem, file: DataFile) -> str | None:
    """Return what is wrong with a file; None if it is intact. Raises LakeError if the lake itself is unreachable."""
    try:
        with table_errors(file.path):
            info = place.get_file_info(file.path)
            if info.type != pafs.FileType.File:
                return "it is gone"
            if info.size != file.size:
                return f"it has {info.size} bytes, and the table says {file.size}"
            with place.open_input_file(file.path) as content:
                rows = pq.read_metadata(content).num_rows
            return None if rows == file.rows else f"it has {rows} rows, and the table says {file.rows}"
    except (LakeUnreachable, LakeUnwritable, LakeFull):
        raise
    except (LakeError, pa.ArrowException) as error:
        text = str(error.__cause__ or error).splitlines()
        return f"it cannot be read: {text[0][:200] if text else type(error).__name__}"
