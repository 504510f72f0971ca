"""Which windows hold heartbeats and which are computed, kept up to date by the tables' new commits alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.lake.tables.delta_log import AddedFile, actions_in, content_of, new_files
from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT, event_times, range_of
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.table import CUT, MOMENT, LakeTable, microseconds
from tidemark.pipeline.lake.tables.windowed import PARTITION as WINDOW
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.windows import DAY, KEY_FORMAT, Windowing, due

COMMITS_AT_ONCE = 100
"""New commits that are read one by one. Beyond that, the list of a table's files costs less."""


class WindowIndex:
    """The windows of one lake, by number. One user at a time; `update` before each use.

    `held` are the windows that may hold a heartbeat by the statistics of a file (without them: by its event hour), and
    `reached` are these and the ones whose lookback may hold one. Heartbeats that were removed by age stay in both;
    `KeptWindows` leaves their windows out.
    """

    def __init__(self, heartbeats: LakeTable, diffs: LakeTable, windowing: Windowing, lookback: timedelta) -> None:
        self.held, self.reached, self.computed = Spans(), Spans(), Spans()
        self.commits_read = 0
        """For tests: how much was read to keep up."""
        self._heartbeats, self._diffs = heartbeats, diffs
        self._windowing, self._lookback = windowing, lookback
        self._folded: dict[str, tuple[int, bytes]] = {}
        """By table: the version through which it is folded, and that commit's content. Commits of two tables differ."""

    def update(self) -> "WindowIndex":
        """Fold what was committed since the last call. Raises LakeError."""
        # In this order: a window that is computed in between counts as computed.
        self._catch_up(self._heartbeats)
        self._catch_up(self._diffs)
        return self

    def due(self, closed: range) -> Iterator[range]:
        """The closed windows that are still to be computed, the newest first: see `tidemark.pipeline.windows.due`."""
        return due(self.held, self.reached, self.computed, closed, max(1, DAY // self._windowing.length))

    def _catch_up(self, table: LakeTable) -> None:
        if table.uri in self._folded and self._followed(table):
            return
        current = table.current()
        self._begin(table, current)
        if current is None:
            self._folded.pop(table.uri, None)
        else:
            self._folded[table.uri] = current.version(), content_of(table, current.version())

    def _begin(self, table: LakeTable, current: DeltaTable | None) -> None:
        """Take everything from the list of the table's files."""
        files = None if current is None else pa.table(current.get_add_actions(flatten=True))
        if table is self._diffs:
            self.computed = Spans() if files is None else self._computed_by(files[f"partition.{WINDOW}"])
        else:
            self.held, self.reached = (Spans(), Spans()) if files is None else self._data_of(files)

    def _followed(self, table: LakeTable) -> bool:
        """Fold the commits after the last one that was folded, which is read again: so a table that was begun anew is
        noticed, and nothing is listed. False if that is not enough: a commit is gone, or took windows away."""
        version, content = self._folded[table.uri]
        try:
            if content_of(table, version) != content:
                return False
            for _ in range(COMMITS_AT_ONCE):
                try:
                    content = content_of(table, version + 1)
                except ObjectMissing:
                    return True
                version += 1
                self.commits_read += 1
                if not self._fold(table, version, actions_in(content)):
                    return False
                self._folded[table.uri] = version, content
        except (ObjectMissing, KeyError, TypeError, json.JSONDecodeError):
            pass
        return False

    def _fold(self, table: LakeTable, version: int, commit: Sequence[Mapping[str, Any]]) -> bool:
        if table is not self._diffs:
            for file in new_files(table, version, commit, "event_time"):
                self._hold(file)
            return True
        added = {action["add"]["partitionValues"][WINDOW] for action in commit if action.get("add")}
        removed = {action["remove"]["partitionValues"][WINDOW] for action in commit if action.get("remove")}
        for number in self._numbers(sorted(added)).tolist():
            self.computed.add(range(number, number + 1))
        return not removed - added

    def _hold(self, file: AddedFile) -> None:
        oldest, newest = range_of(file)
        first, number_of = self._windowing.number_of(oldest), self._windowing.number_of
        self.held.add(range(first, number_of(newest) + 1))
        self.reached.add(range(first, number_of(newest + self._lookback) + 1))

    def _data_of(self, files: pa.Table) -> tuple[Spans, Spans]:
        hours = pc.strptime(files[f"partition.{EVENT_HOUR}"], format=HOUR_FORMAT, unit="us").cast(MOMENT)
        # The library truncates a file's greatest time to the millisecond.
        newest = pc.add(event_times(files, "max"), pa.scalar(CUT, pa.duration("us")))
        low = microseconds(pc.coalesce(event_times(files, "min"), hours))
        high = microseconds(pc.coalesce(newest, pc.add(hours, pa.scalar(HOUR, pa.duration("us")))))
        length_us = duration_us(self._windowing.length)
        reached = Spans.of(low // length_us, (high + duration_us(self._lookback)) // length_us + 1)
        return Spans.of(low // length_us, high // length_us + 1), reached

    def _computed_by(self, keys: pa.ChunkedArray) -> Spans:
        numbers = self._numbers(pc.unique(keys))
        return Spans.of(numbers, numbers + 1)

    def _numbers(self, keys: pa.Array | list[str]) -> Ints:
        """The numbers of the windows with these keys; keys of windows of another length are left out."""
        numbers, is_of_length = window_numbers(keys, self._windowing)
        return numbers[is_of_length]


def window_numbers(keys: pa.Array | list[str], windowing: Windowing) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The number of each window, and whether it is a window of this length: the settings may have said another once."""
    if isinstance(keys, list):  # of none, the type would not be known
        keys = pa.array(keys, pa.string())
    starts: Ints = pc.strptime(keys, format=KEY_FORMAT, unit="us").cast(pa.int64()).to_numpy(zero_copy_only=False)
    length_us = duration_us(windowing.length)
    return starts // length_us, starts % length_us == 0
