"""Which windows lack which heartbeats, given what each window was computed from: pure, on columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import duration_us, from_us, to_us
from pipeline.lake.tables.delta_log import AddedFile
from pipeline.watermark.histogram import Ints
from pipeline.windows import Window, Windowing


@dataclass(frozen=True, slots=True, order=True)
class StaleWindow:
    """A computed window whose input has grown since: by heartbeats of its own, or by some in its lookback. Without
    `computed_from`, nobody can say any more what it has read, or what landed since."""

    window: Window
    missed: int
    missed_before: int
    computed_from: int | None

    @property
    def sentence(self) -> str:
        """Which window, and why it is stale."""
        return f"{self.window}: {self.why}"

    @property
    def why(self) -> str:
        """Why it is stale."""
        if self.computed_from is None:
            return "nobody can say any more what it has read of what is in its reach"
        return (
            f"computed from version {self.computed_from} of heartbeats, without {self.missed} of its own and "
            f"{self.missed_before} in its lookback"
        )


@dataclass(frozen=True, slots=True)
class Missed:
    """What landed after its window was computed, as of these versions of the two tables.

    Each heartbeat is counted once, in its own window, until that has been computed again; then it is `mended`, which
    is counted since the lake's first check. While a long check is under way, this is what the one before it said, and
    `left` is how many commits, manifests, files or hours are still to be looked at before it goes on with others.
    """

    heartbeats_version: int = -1
    diffs_version: int = -1
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    stale: Sequence[StaleWindow] = ()
    mended: int = 0
    left: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.by_window.values())


@dataclass(frozen=True, slots=True)
class Reach:
    """Which windows an event time matters to: its own, and each whose lookback holds it, both ends included."""

    windowing: Windowing
    lookback: timedelta

    def keys_reached_by(self, arrived: pa.Table) -> set[str]:
        """The keys of the windows that any of these heartbeats matters to."""
        event_us = _us(arrived["event_time"])
        return {self.key(start) for own in self.windows_of(event_us) for start in self.starts(own)}

    def windows_of(self, event_us: Ints) -> list[int]:
        """The starts of the windows that these event times lie in, each once, in order."""
        own: list[int] = np.unique(self.own_starts(event_us)).tolist()
        return own

    def own_starts(self, event_us: Ints) -> Ints:
        """The start of the window that each event time lies in."""
        starts: Ints = event_us - event_us % duration_us(self.windowing.length)
        return starts

    def starts(self, own_us: int) -> Iterator[int]:
        """The starts of the windows that some event time of one window may matter to, that window first."""
        length_us = duration_us(self.windowing.length)
        last_us = own_us + length_us - 1 + duration_us(self.lookback)
        yield from range(own_us, last_us + 1, length_us)

    def key(self, start_us: int) -> str:
        """The window's name."""
        return self.windowing.containing(from_us(start_us)).key


@dataclass(frozen=True, slots=True)
class Unread:
    """Windows by their start, in order, and the version through which nothing is left to be looked at for each."""

    reach: Reach
    starts_us: Ints
    versions: Ints

    @classmethod
    def of(cls, reach: Reach, versions: Mapping[int, int]) -> "Unread":
        """From the version of each window's start."""
        columns = np.array(sorted(versions.items()), dtype=np.int64).reshape(-1, 2)
        return cls(reach, columns[:, 0], columns[:, 1])

    def may_be_in(self, file: AddedFile) -> bool:
        """Whether a file may hold heartbeats that matter to a window and came after its version."""
        first, last = 0, len(self.starts_us)
        if file.oldest is not None:
            first = int(
                np.searchsorted(self.starts_us, to_us(file.oldest) - duration_us(self.reach.windowing.length), "right")
            )
        if file.newest is not None:
            cut_us = 1000  # the library may have cut it to the millisecond
            newest_us = to_us(file.newest) + cut_us + duration_us(self.reach.lookback)
            last = int(np.searchsorted(self.starts_us, newest_us, "right"))
        return first < last and int(self.versions[first:last].min()) < file.version


def with_later_copies(files: Sequence[AddedFile], unread: Unread) -> list[AddedFile]:
    """The files that may hold what a window has not read, and those that came after the first of them and may hold
    copies of it: copies share their event time."""
    chosen = [file for file in files if unread.may_be_in(file)]
    first = min((file.version for file in chosen), default=0)
    hours = {file.partition for file in chosen}
    return [file for file in files if file.version >= first and file.partition in hours]


def judged(arrived: pa.Table, versions: Mapping[str, int], reach: Reach) -> tuple[pa.Table, int, Missed]:
    """Which first landings are missed by which windows, given the version that each computed window was read from.

    Returns the landings that any window still lacks, how many are no longer missed since they were judged before, and
    what is missed.
    """
    event_us, landed = _us(arrived["event_time"]), _ints(arrived["version"])
    was_missed = np.asarray(arrived["missed"].combine_chunks().to_numpy(zero_copy_only=False), dtype=bool)
    is_missed, is_lacking = np.zeros_like(was_missed), np.zeros_like(was_missed)
    own_us = reach.own_starts(event_us)
    order = np.argsort(own_us, kind="stable")
    starts, firsts = np.unique(own_us[order], return_index=True)
    of_own: dict[int, int] = {}
    before: dict[int, int] = {}
    for start_us, rows in zip(starts.tolist(), np.split(order, firsts)[1:], strict=True):
        for window_us in reach.starts(start_us):
            version = versions.get(reach.key(window_us))
            if version is None:
                continue
            lacks = (landed[rows] > version) & (event_us[rows] >= window_us - duration_us(reach.lookback))
            count = int(np.count_nonzero(lacks))
            if not count:
                continue
            is_lacking[rows[lacks]] = True
            if window_us == start_us:
                is_missed[rows[lacks]] = True
                of_own[window_us] = count
            else:
                before[window_us] = before.get(window_us, 0) + count
    mended = int(np.count_nonzero(was_missed & ~is_missed))
    stale = [
        StaleWindow(
            reach.windowing.containing(from_us(start_us)),
            of_own.get(start_us, 0),
            before.get(start_us, 0),
            versions[reach.key(start_us)],
        )
        for start_us in sorted(of_own.keys() | before.keys())
    ]
    arrived = arrived.set_column(arrived.column_names.index("missed"), "missed", pa.array(is_missed, pa.bool_()))
    by_stream = pc.value_counts(arrived["stream_id"].filter(pa.array(is_missed)))
    missed = Missed(
        by_window={reach.key(start_us): count for start_us, count in sorted(of_own.items())},
        by_stream={entry["values"]: entry["counts"] for entry in by_stream.to_pylist()},
        stale=stale,
    )
    return arrived.filter(pa.array(is_lacking)), mended, missed


def _us(column: pa.ChunkedArray) -> Ints:
    return _ints(column.cast(pa.int64()))


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.combine_chunks().to_numpy()
    return values
