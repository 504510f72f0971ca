"""A set of whole numbers as disjoint stretches: it stays small where they are neighbours, however many there are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Spans:
    """The set. Its cost follows the stretches, never the numbers in them."""

    def __init__(self, *stretches: range) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for stretch in stretches:
            self.add(stretch)

    @classmethod
    def of(cls, lows: NDArray[np.int64], highs: NDArray[np.int64]) -> "Spans":
        """The union of `[low, high)`, in one pass over both arrays."""
        spans = cls()
        if len(lows):
            order = np.argsort(lows, kind="stable")
            lows, reached = lows[order], np.maximum.accumulate(highs[order])
            begins = np.flatnonzero(lows[1:] > reached[:-1]) + 1
            spans._lows = lows[np.concatenate([[0], begins])].tolist()
            spans._highs = reached[np.concatenate([begins - 1, [-1]])].tolist()
        return spans

    def add(self, stretch: range) -> None:
        """Add a stretch of neighbours; what it overlaps or touches becomes one with it."""
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
        """The smallest number; None of an empty set."""
        return self._lows[0] if self._lows else None

    def within(self, bounds: range) -> Iterator[range]:
        """The stretches, cut to the bounds, the greatest first."""
        for place in range(bisect_left(self._lows, bounds.stop) - 1, -1, -1):
            if self._highs[place] <= bounds.start:
                return
            if bounds:
                yield range(max(self._lows[place], bounds.start), min(self._highs[place], bounds.stop))

    def without(self, others: "Spans", bounds: range) -> Iterator[range]:
        """Yield what is in this set, within the bounds and not in another one, the greatest first."""
        for stretch in self.within(bounds):
            high = stretch.stop
            for other in others.within(stretch):
                if other.stop < high:
                    yield range(other.stop, high)
                high = other.start
            if stretch.start < high:
                yield range(stretch.start, high)
