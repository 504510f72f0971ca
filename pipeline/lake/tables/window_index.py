"""Keeps track of the windows of a lake: which of them have heartbeats, which are computed, and which can be recomputed
because all their heartbeats are kept."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.errors import WindowExpired
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.delta_log import Commit, Follower
from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT, range_of
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.table import MOMENT, LakeTable, microseconds
from tidemark.pipeline.lake.tables.windowed import PARTITION as WINDOW
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.windows import DAY, KEY_FORMAT, Spans, Window, Windowing, due, start_of

COMMITS_AT_ONCE = 100
"""Maximum number of new commits that are read one by one. If there are more, listing the table's files is cheaper."""

KEPT_FROM = JsonKind("retention/windows-from-", holds=NoContent)
"""Stores the first window whose heartbeats are all kept, as the key of an empty object. Retention has deleted
heartbeats of earlier windows, so recomputing one of these would replace complete rows with incomplete ones. After
KEY_SEPARATOR, the key may also have the first hour whose heartbeats are all kept. If the lookback grows, the first
window is derived from this hour."""

KEY_SEPARATOR = "_"


class WindowIndex:
    """The windows of one lake, by number. Call `update` before each use. Not thread-safe.

    `held` are the windows that may contain a heartbeat, judging by file statistics or, if a file has none, by the
    hour of its partition. `reached` are the windows that may contain a heartbeat or have one in
    their lookback. `reached` also has the last window of each hour with a heartbeat: this window is computed after the
    hour's end, so its run can report the whole hour to Dagster as materialized. `computed` are the computed windows.

    A window stays in `held` and `reached` after retention has deleted its heartbeats. KeptWindows excludes these
    windows.
    """

    def __init__(self, heartbeats: LakeTable, diffs: LakeTable, windowing: Windowing) -> None:
        self.held, self.reached, self.computed = Spans(), Spans(), Spans()
        self._heartbeats, self._diffs = Follower(heartbeats), Follower(diffs)
        self._landed, self._table = heartbeats, diffs
        self._windowing = windowing
        self._in_hour = max(1, HOUR // windowing.length)

    def update(self) -> "WindowIndex":
        """Process the commits since the last call, and return the index. Raises LakeError, and InvalidSettings if the
        computed windows do not have the length in the settings."""
        # Heartbeats come first, so that a window that is computed in between counts as computed.
        self._heartbeats.follow(self._hold, self._begin_data, COMMITS_AT_ONCE)
        self._diffs.follow(self._follow, self._begin_computed, COMMITS_AT_ONCE)
        return self

    def due(self, closed: range) -> Iterator[range]:
        """Yield ranges of the windows in `closed` that are due to be computed, the newest first.
        `tidemark.pipeline.windows.due` defines which windows are due."""
        return due(self.held, self.reached, self.computed, closed, max(1, DAY // self._windowing.length))

    def _hold(self, commit: Commit) -> bool:
        bounds_us = [(to_us(oldest), to_us(newest)) for oldest, newest in map(range_of, commit.added)]
        self._hold_files(*np.array(bounds_us, np.int64).reshape(-1, 2).T)
        return True

    def _follow(self, commit: Commit) -> bool:
        """Mark as computed the windows that a commit to `heartbeat_diffs` added. Returns False if the commit may have
        left a window without files: it removed a window without replacing it, or it is a compaction by another tool,
        which drops empty files."""
        added = {file.partition for file in commit.added}
        self._add_computed(sorted(added))
        is_compaction = not commit.is_append and not commit.removed
        return added.issuperset(commit.removed.values()) and not is_compaction

    def _begin_data(self, heartbeats: DeltaTable | None) -> None:
        files = self._landed.listed(heartbeats)
        hours = pc.strptime(files[f"partition.{EVENT_HOUR}"], format=HOUR_FORMAT, unit="us").cast(MOMENT)
        oldest = pc.coalesce(files["oldest"], hours)
        newest = pc.coalesce(files["newest"], pc.add(hours, pa.scalar(HOUR, pa.duration("us"))))
        self.held, self.reached = Spans(), Spans()
        self._hold_files(microseconds(oldest), microseconds(newest))

    def _hold_files(self, oldest_us: Ints, newest_us: Ints) -> None:
        """Add the windows of files to `held` and `reached`. The arrays have the bounds of each file's event times."""
        length_us = duration_us(self._windowing.length)
        first, last = oldest_us // length_us, newest_us // length_us
        hour_end = (last // self._in_hour + 1) * self._in_hour
        self.held.add_all(first, last + 1)
        self.reached.add_all(first, (newest_us + duration_us(self._windowing.lookback)) // length_us + 1)
        self.reached.add_all(hour_end - 1, hour_end)

    def _begin_computed(self, diffs: DeltaTable | None) -> None:
        refuse_other_length(self._table, diffs, self._windowing.length)
        self.computed = Spans()
        self._add_computed(pc.unique(self._table.listed(diffs)[f"partition.{WINDOW}"]))

    def _add_computed(self, keys: pa.Array | list[str]) -> None:
        numbers, is_of_length = window_numbers(keys, self._windowing)
        self.computed.add_all(numbers[is_of_length], numbers[is_of_length] + 1)


def window_numbers(keys: pa.Array | list[str], windowing: Windowing) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return two arrays with one element per key: the number of the window, and whether a window of the configured
    length starts at the time in the key. If not, the window was computed with a different length."""
    if isinstance(keys, list):  # an empty list has no type
        keys = pa.array(keys, pa.string())
    starts: Ints = pc.strptime(keys, format=KEY_FORMAT, unit="us").cast(pa.int64()).to_numpy(zero_copy_only=False)
    length_us = duration_us(windowing.length)
    return starts // length_us, starts % length_us == 0


class KeptWindows:
    """The retention boundary of a lake: the first window whose input is still complete, because retention has deleted
    none of it. Earlier windows must not be recomputed. If several windows are stored, the latest one counts."""

    def __init__(self, objects: ObjectStore, windowing: Windowing) -> None:
        self._notes = Notes(objects, KEPT_FROM)
        self._windowing = windowing

    def since(self) -> datetime | None:
        """Return the start of the first window whose heartbeats are all kept; None if retention has deleted no
        heartbeats. Raises LakeError."""
        if not (stored := self._stored()):
            return None
        first, *hours = stored
        # The length and the lookback may have changed since.
        noted = max([first, *(hour + self._windowing.lookback for hour in hours)])
        window = self._windowing.containing(noted)
        return window.start if window.start == noted else window.end

    def heartbeats_from(self) -> datetime | None:
        """Return the first event hour whose heartbeats are all kept; None if retention has not deleted any hour. Raises
        LakeError."""
        return next(iter(self._stored()[1:]), None)

    def _stored(self) -> list[datetime]:
        """Return the start of the stored window and, if there is one, the stored hour; nothing if neither is stored."""
        keys = self._notes.listed()
        return [start_of(key) for key in keys[-1].split(KEY_SEPARATOR)] if keys else []

    def closed(self, watermark: datetime | None) -> range:
        """Return the numbers of all windows since `windows.first` that the watermark has passed and whose heartbeats
        are all kept. The range is empty if `watermark` is None. Raises LakeError."""
        if watermark is None:
            return range(0)
        first = max(self._windowing.first, self.since() or self._windowing.first)
        return range(self._windowing.number_of(first), self._windowing.number_of(watermark))

    def raise_to(self, window: Window, heartbeats_from: datetime | None = None) -> None:
        """Durably store the first window (`window`) and the first hour (`heartbeats_from`) whose heartbeats are all
        kept. The hour is None if retention deletes only windows. If a later window or hour is already stored, that one
        stays. Raises LakeError."""
        hours = [] if heartbeats_from is None else [heartbeats_from.strftime(KEY_FORMAT)]
        keys = [*self._notes.listed()[-1:], KEY_SEPARATOR.join([window.key, *hours])]
        # Take the later window and the later hour separately: a changed setting may raise only one of them.
        latest = map(max, zip_longest(*(key.split(KEY_SEPARATOR) for key in keys), fillvalue=""))
        self._notes.ensure(KEY_SEPARATOR.join(latest), NoContent())
        self._notes.keep_newest(2)  # a listing may miss a note that is deleted meanwhile

    def refuse_expired(self, windows: Sequence[Window], further: timedelta = timedelta(0)) -> None:
        """Raise WindowExpired if one of these windows needs heartbeats that have been deleted. `further` is the time by
        which the computation's lookback exceeds that of `heartbeat_diffs`."""
        if (since := self.since()) is None:
            return
        if expired := [window for window in windows if window.start < since + further]:
            raise WindowExpired(
                "housekeeping has deleted heartbeats that the selected windows need: "
                f"{len(expired)} of {len(windows)} cannot be computed, the first of them {expired[0]}. Nothing was "
                f"written; select windows that start at {since + further:%Y-%m-%dT%H:%MZ} or later"
            )
