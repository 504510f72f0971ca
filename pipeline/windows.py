"""Event-time windows, and the choice of the windows that are due.

A window is a half-open interval `[start, end)`. The windows of a table have one length, and are aligned to the epoch in
UTC. A window's key is its start, such as `2026-11-21T05-20Z`. The key is also the window's partition value in Delta. It
has no colons, because Spark escapes colons in paths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from tidemark.pipeline.clock import EPOCH, format_duration, iso

KEY_FORMAT = "%Y-%m-%dT%H-%MZ"
WINDOWS_PER_RUN = 288
"""Maximum number of windows per run: a day of five-minute windows. It bounds the work that a failed run repeats."""

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open interval of event times, `[start, end)`. Both bounds are aware and in UTC."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """The window's start as text, such as `2026-11-21T05-20Z`."""
        return self.start.strftime(KEY_FORMAT)

    def is_closed_at(self, watermark: datetime | None) -> bool:
        """Return True if the watermark has passed the whole window."""
        return watermark is not None and self.end <= watermark

    def __str__(self) -> str:
        return f"[{iso(self.start)}, {iso(self.end)})"


def start_of(key: str) -> datetime:
    """Return the start of the window with this key, whatever its length. Raises ValueError if the text is not a key."""
    with suppress(ValueError):
        start = datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
        if start.year < MAXYEAR:  # otherwise the end of its window may not be a date
            return start
    raise ValueError(f"{key!r} is not a window key; a window's key is its start, such as 2026-11-21T05-20Z")


@dataclass(frozen=True, slots=True)
class Windowing:
    """The division of event time into the windows of a table. The settings check that `length` divides a day, and that
    `first`, the start of the first window, is a multiple of `length` after the epoch. Computing a window also needs the
    heartbeats of its `lookback`, the time before its start."""

    length: timedelta
    first: datetime
    lookback: timedelta = timedelta(0)

    def containing(self, moment: datetime) -> Window:
        """Return the window that contains an event time."""
        return self.numbered(self.number_of(moment))

    def named(self, key: str) -> Window:
        """Return the window with this key. Raises ValueError if the text is not the key of a window of this length."""
        start = start_of(key)
        window = self.containing(start)
        if window.start != start or window.key != key:  # strptime also reads unpadded numbers
            raise ValueError(
                f"{key} is not the start of a window: windows start at multiples of {format_duration(self.length)}"
            )
        return window

    def number_of(self, moment: datetime) -> int:
        """Return the number of the window that contains an event time. Consecutive windows have consecutive numbers."""
        return (moment - EPOCH) // self.length

    def numbered(self, number: int) -> Window:
        """Return the window with this number."""
        start = EPOCH + number * self.length
        return Window(start, start + self.length)

    def between(self, start: datetime, end: datetime) -> Iterator[Window]:
        """Yield the windows that lie wholly in `[start, end)`, in order."""
        first = -((EPOCH - start) // self.length)  # rounded up
        yield from map(self.numbered, range(first, self.number_of(end)))


def runs_of_neighbours(windows: Iterable[Window]) -> list[list[Window]]:
    """Group windows into contiguous ranges, in order, because a Dagster run covers one contiguous range."""
    stretches: list[list[Window]] = []
    for window in sorted(windows):
        if stretches and stretches[-1][-1].end == window.start:
            stretches[-1].append(window)
        else:
            stretches.append([window])
    return stretches


class Spans:
    """A set of integers, stored as disjoint ranges. Memory and time depend on the number of ranges, not on the number
    of integers."""

    def __init__(self, *stretches: range) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for stretch in stretches:
            self.add(stretch)

    def add(self, stretch: range) -> None:
        """Add a range, merging it with the ranges that it overlaps or touches."""
        if not stretch:
            return
        first, last = bisect_left(self._highs, stretch.start), bisect_right(self._lows, stretch.stop)
        low = min([stretch.start, *self._lows[first : min(first + 1, last)]])
        high = max([stretch.stop, *self._highs[max(first, last - 1) : last]])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

    def add_all(self, lows: NDArray[np.int64], highs: NDArray[np.int64]) -> None:
        """Add the ranges `[low, high)`. They are merged with each other first, without a Python loop over them."""
        if len(lows):
            order = np.argsort(lows, kind="stable")
            lows, reached = lows[order], np.maximum.accumulate(highs[order])
            begins = np.flatnonzero(lows[1:] > reached[:-1]) + 1
            merged = lows[np.concatenate([[0], begins])].tolist(), reached[np.concatenate([begins - 1, [-1]])].tolist()
            for low, high in zip(*merged, strict=True):
                self.add(range(low, high))

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._lows, number) - 1
        return place >= 0 and number < self._highs[place]

    def __len__(self) -> int:
        return sum(self._highs) - sum(self._lows)

    @property
    def least(self) -> int | None:
        """The smallest number; None if the set is empty."""
        return self._lows[0] if self._lows else None

    def within(self, bounds: range) -> Iterator[range]:
        """Yield the ranges, cut to the bounds, in descending order."""
        for place in range(bisect_left(self._lows, bounds.stop) - 1, -1, -1):
            if self._highs[place] <= bounds.start:
                return
            if bounds:
                yield range(max(self._lows[place], bounds.start), min(self._highs[place], bounds.stop))

    def without(self, others: "Spans", bounds: range) -> Iterator[range]:
        """Yield the ranges of this set that are within the bounds and not in `others`, in descending order."""
        for stretch in self.within(bounds):
            high = stretch.stop
            for other in others.within(stretch):
                if other.stop < high:
                    yield range(other.stop, high)
                high = other.start
            if stretch.start < high:
                yield range(stretch.start, high)


def due(held: Spans, reached: Spans, computed: Spans, closed: range, live: int) -> Iterator[range]:
    """Yield the numbers of the closed windows still to be computed, as contiguous ranges, newest first.

    `held` are the windows that may contain a heartbeat. `reached` are the windows that may contain a heartbeat or have
    one in their lookback, and the last window of each hour with a heartbeat. `closed` are the windows that the
    watermark has passed, and `computed` the windows to leave out.

    - A window in `reached` is always computed.
    - Any other window has no rows. It is computed only while it is live: among the last `live` closed windows, and at
      most `live` windows after a window in `held`.

    So a heartbeat that is months old adds only the windows that it reaches, not every window since. The cost depends on
    the number of ranges in `reached` that are visited, not on the number of windows.
    """
    near = range(max(closed.start, closed.stop - live), closed.stop)
    wanted = Spans(*reached.within(near))
    for stretch in held.within(range(near.start - live, near.stop)):
        wanted.add(range(max(stretch.start, near.start), min(stretch.stop + live, near.stop)))
    yield from wanted.without(computed, near)
    yield from reached.without(computed, range(closed.start, near.start))
