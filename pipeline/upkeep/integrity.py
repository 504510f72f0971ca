"""What of a range of windows has to be computed again, and what can not be: every file looked at, nothing changed.

A window is *missing* (closed, and not computed), *stale* (what it was computed from has grown since) or *damaged* (a
file of it, or its run's manifest, is gone or unreadable). All three are mended by computing it again, as long as the
heartbeats that it is made from can be read; a damaged file of those is named with the windows that need it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.fs as pafs

from pipeline.clock import iso
from pipeline.errors import CorruptObject, LakeError, LakeUnreachable, ObjectMissing
from pipeline.lake.tables import heartbeats as landed
from pipeline.lake.tables.diffs import PARTITION, HeartbeatDiffs
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.table import MOMENT, DataFile, LakeTable, data_files
from pipeline.quality.staleness import Staleness
from pipeline.upkeep.orphans import run_of
from pipeline.upkeep.parquet_health import damage_of
from pipeline.windows import Window, Windowing, due, runs_of_neighbours

logger = logging.getLogger(__name__)

READERS = 8
"""Files that are read at the same time: on a bucket, each is a few requests of its own."""

CUT = timedelta(milliseconds=1)
"""By which the library may have cut a file's greatest event time."""

Progress = Callable[[str, int, int], None]
"""Told what is being looked at, how much of it is done, and how much there is."""


class Fault(StrEnum):
    """Why a window has to be computed again. The first that holds is the window's."""

    DAMAGED = "damaged"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Broken:
    """A window to be computed again: every reason, and why it cannot be just now, if it cannot."""

    window: Window
    fault: Fault
    reasons: Sequence[str]
    blocked_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DamagedInput:
    """A file of `heartbeats` that is gone or unreadable, and the windows of the range that are made from it."""

    path: str
    why: str
    windows: Sequence[Window]


@dataclass(frozen=True, slots=True)
class Integrity:
    """What a check found in the windows `[start, end)`."""

    start: datetime
    end: datetime
    windows: int
    files: int
    broken: Sequence[Broken] = ()
    inputs: Sequence[DamagedInput] = ()
    untold: Sequence[str] = ()

    @property
    def repairable(self) -> list[list[Window]]:
        """The windows to compute again that can be, as stretches without a gap, in order."""
        return runs_of_neighbours(broken.window for broken in self.broken if not broken.blocked_by)

    @property
    def blocked(self) -> list[Broken]:
        """The windows that need more than to be computed again."""
        return [broken for broken in self.broken if broken.blocked_by]


@dataclass(frozen=True, slots=True)
class WindowChecker:
    """Checks windows of one lake. Reads; writes nothing."""

    landed_table: LakeTable
    heartbeats: Heartbeats
    diffs: HeartbeatDiffs
    beside: Sequence[LakeTable]
    """Tables that each run replaces together with the diffs."""
    staleness: Staleness
    windowing: Windowing
    lookback: timedelta

    def check(
        self,
        start: datetime,
        end: datetime,
        *,
        watermark: datetime | None,
        read_values: bool,
        progress: Progress | None = None,
    ) -> Integrity:
        """Check each window that lies wholly in `[start, end)`.

        `watermark` says which windows are closed. With `read_values`, every value of every file of the range is
        decoded, else footers and sizes alone are looked at. Raises LakeError where a table's own log cannot be read, or
        the lake does not answer.
        """
        tell = progress or (lambda *_: None)
        windows = {window.key: window for window in self.windowing.between(start, end)}
        tables = (self.diffs.table, *self.beside)
        files = {table.uri: [file for file in _files_of(table) if file.partition in windows] for table in tables}
        reasons = self._damaged(tables, files, read_values, tell)
        faults = dict.fromkeys(reasons, Fault.DAMAGED)
        for window in self._missing(windows, watermark):
            faults.setdefault(window.key, Fault.MISSING)
            reasons.setdefault(window.key, []).append("it is closed, and not computed")
        untold = []
        try:
            tell("what landed since windows were computed", 0, 1)
            for stale in self.staleness.check().stale:
                if stale.window.key in windows:
                    faults.setdefault(stale.window.key, Fault.STALE)
                    reasons.setdefault(stale.window.key, []).append(stale.why)
        except LakeUnreachable:
            raise
        except (LakeError, pa.ArrowException) as error:
            untold.append(f"which windows are stale cannot be told until the rest is mended: {error}")
        inputs = self._damaged_inputs(windows, read_values, partial(tell, "files of heartbeats"))
        return Integrity(
            start=start,
            end=end,
            windows=len(windows),
            files=sum(map(len, files.values())),
            broken=[
                Broken(windows[key], faults[key], reasons[key], self._blocks(windows[key], inputs, watermark))
                for key in sorted(faults)
            ],
            inputs=inputs,
            untold=untold,
        )

    def _damaged(
        self, tables: Sequence[LakeTable], files: Mapping[str, Sequence[DataFile]], read_values: bool, tell: Progress
    ) -> dict[str, list[str]]:
        """What is wrong with windows that are computed, by window: with their files, and with their runs' manifests."""
        found: dict[str, list[str]] = {}
        runs: dict[str, set[str]] = {}
        for table in tables:
            of_table = partial(tell, f"files of {table.uri.rpartition('/')[2]}")
            for file, damage in _looked_at(table, files[table.uri], read_values, of_table):
                found.setdefault(file.partition, []).append(f"{table.file_location(file.path)}: {damage}")
            of_windows: dict[str, set[str]] = {}
            for file in files[table.uri]:
                of_windows.setdefault(file.partition, set()).add(run_of(file.path) or file.path)
            for key, of_window in of_windows.items():
                if len(of_window) > 1:
                    found.setdefault(key, []).append(f"it has rows of several runs: {', '.join(sorted(of_window))}")
                runs.setdefault(key, set()).update(of_window)
        told = {run: self._damage_of_manifest(run) for run in set().union(*runs.values())}
        for key, of_window in runs.items():
            found.setdefault(key, []).extend(why for run in sorted(of_window) if (why := told[run]) is not None)
        return {key: reasons for key, reasons in found.items() if reasons}

    def _damage_of_manifest(self, run: str) -> str | None:
        try:
            self.diffs.manifest(run)
        except ObjectMissing:
            return f"the manifest of its run {run} is gone: nobody can say what it was computed from"
        except CorruptObject:
            return f"the manifest of its run {run} cannot be read: nobody can say what it was computed from"
        return None

    def _missing(self, windows: dict[str, Window], watermark: datetime | None) -> list[Window]:
        since = self.heartbeats.extent().oldest_event_time
        closed = [] if since is None else self.windowing.closed_at(watermark, since)
        inside = [window for window in closed if window.key in windows]
        return due(inside, self.diffs.computed(), self.heartbeats.hours())

    def _damaged_inputs(
        self, windows: dict[str, Window], read_values: bool, tell: Callable[[int, int], None]
    ) -> list[DamagedInput]:
        table = self.landed_table.current()
        if table is None or not windows:
            return []
        ranges = _event_ranges(pa.table(table.get_add_actions(flatten=True)))
        needing = {
            path: [window for window in windows.values() if self._needs(window, *between)]
            for path, between in ranges.items()
        }
        files = [file for file in data_files(table, landed.PARTITION) if needing[file.path]]
        return [
            DamagedInput(self.landed_table.file_location(file.path), why, needing[file.path])
            for file, why in _looked_at(self.landed_table, files, read_values, tell)
        ]

    def _needs(self, window: Window, oldest: datetime | None, newest: datetime | None) -> bool:
        """Whether a run over this window would read a file with event times between these."""
        return (oldest is None or oldest <= window.end) and (
            newest is None or newest + CUT >= window.start - self.lookback
        )

    def _blocks(self, window: Window, inputs: Iterable[DamagedInput], watermark: datetime | None) -> list[str]:
        blocks = [f"{damaged.path} is damaged" for damaged in inputs if window in damaged.windows]
        if not window.is_closed_at(watermark):
            where = "is not known" if watermark is None else f"is at {iso(watermark)}"
            blocks.append(f"the watermark {where}, and a run takes closed windows only")
        return blocks


def _files_of(table: LakeTable) -> list[DataFile]:
    """The newest version's files of a table that is made of `heartbeats`."""
    try:
        current = table.current()
    except CorruptObject as error:
        raise CorruptObject(
            f"{error}. Where there is none: every window can be computed again, so move {table.uri} away, and repair"
        ) from error
    return [] if current is None else data_files(current, PARTITION)


def _looked_at(
    table: LakeTable, files: Sequence[DataFile], read_values: bool, tell: Callable[[int, int], None]
) -> Iterable[tuple[DataFile, str]]:
    """The damaged ones of a table's files, each with what is wrong."""
    if not files:
        return
    place: pafs.FileSystem = table.file_system()
    tell(0, len(files))
    with ThreadPoolExecutor(READERS, thread_name_prefix="integrity") as pool:
        look = partial(damage_of, place, read_values=read_values)
        for number, (file, why) in enumerate(zip(files, pool.map(look, files), strict=True), start=1):
            if why is not None:
                yield file, why
            tell(number, len(files))


def _event_ranges(actions: pa.Table) -> dict[str, tuple[datetime | None, datetime | None]]:
    """Between which event times each file's rows lie, by its path; None where the file does not say."""
    bounds = [
        actions[name].cast(MOMENT).to_pylist() if name in actions.column_names else [None] * len(actions)
        for name in ("min.event_time", "max.event_time")
    ]
    return dict(zip(actions["path"].to_pylist(), zip(*bounds, strict=True), strict=True))
