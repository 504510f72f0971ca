"""A set of integers stored as disjoint ranges: it stays small if the integers are contiguous, however many they are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Spans:
    """A set of integers. Costs depend on the number of ranges, not on the number of integers."""

    def __init__(self, *stretches: range) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for stretch in stretches:
            self.add(stretch)

    @classmethod
    def of(cls, lows: NDArray[np.int64], highs: NDArray[np.int64]) -> "Spans":
        """Return the union of the ranges `[low, high)`, in one pass over both arrays."""
        spans = cls()
        if len(lows):
            order = np.argsort(lows, kind="stable")
            lows, reached = lows[order], np.maximum.accumulate(highs[order])
            begins = np.flatnonzero(lows[1:] > reached[:-1]) + 1
            spans._lows = lows[np.concatenate([[0], begins])].tolist()
            spans._highs = reached[np.concatenate([begins - 1, [-1]])].tolist()
        return spans

    def add(self, stretch: range) -> None:
        """Add a range, merging it with the ranges that it overlaps or touches."""
        if not stretch:
            return
        first, last = bisect_left(self._highs, stretch.start), bisect_right(self._lows, stretch.stop)
        low = min([stretch.start, *self._lows[first : min(first + 1, last)]])
        high = max([stretch.stop, *self._highs[max(first, last - 1) : last]])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

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
