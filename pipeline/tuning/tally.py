"""Counts of whole numbers by group, sparse: memory follows how many different ones there are, not how many come."""

import numpy as np
import numpy.typing as npt

from pipeline.watermark.histogram import Ints

Floats = npt.NDArray[np.float64]

VALUE_BITS = 33
LARGEST = 1 << (VALUE_BITS - 1)
GROUPS = 1 << (63 - VALUE_BITS)
"""Values lie in `[-LARGEST, LARGEST)` and groups in `[-GROUPS, GROUPS)`, so that a pair is one int64."""


class Tally:
    """Adds up `(group, value)` pairs. What is beyond what fits is counted as the nearest that does."""

    def __init__(self) -> None:
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Ints, Ints]] = []
        self._waiting_cells = 0

    def add(self, groups: Ints, values: Ints) -> None:
        """Count each pair of two arrays of one length."""
        clipped = np.clip(values, -LARGEST, LARGEST - 1) + LARGEST
        keys, counts = np.unique((np.clip(groups, -GROUPS, GROUPS - 1) << VALUE_BITS) | clipped, return_counts=True)
        self._waiting.append((keys, counts.astype(np.int64)))
        self._waiting_cells += len(keys)
        if self._waiting_cells > max(100_000, len(self._keys)):
            self._merge()

    def cells(self) -> tuple[Ints, Ints, Ints]:
        """Groups, values and counts, three arrays of one length, in order of group and value."""
        self._merge()
        return self._keys >> VALUE_BITS, (self._keys & ((1 << VALUE_BITS) - 1)) - LARGEST, self._counts

    def whole(self) -> tuple[Ints, Ints]:
        """Values and counts over all groups, in order of value."""
        _, values, counts = self.cells()
        present, place = np.unique(values, return_inverse=True)
        summed = np.zeros(len(present), dtype=np.int64)
        np.add.at(summed, place, counts)
        return present, summed

    def quantiles(self, share: float) -> tuple[Ints, Ints]:
        """Each group that occurs, and its quantile: the least value that `share` of its counts do not exceed."""
        groups, values, counts = self.cells()
        if not len(groups):
            return groups, values
        starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
        running = np.cumsum(counts)
        before = np.concatenate([[0], running[starts[1:] - 1]])
        totals = np.add.reduceat(counts, starts)
        places = np.searchsorted(running, before + np.maximum(np.ceil(share * totals), 1))
        return groups[starts], values[places]

    def _merge(self) -> None:
        if not self._waiting:
            return
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._keys, place = np.unique(keys, return_inverse=True)
        self._counts = np.zeros(len(self._keys), dtype=np.int64)
        np.add.at(self._counts, place, counts)
        self._waiting, self._waiting_cells = [], 0


def quantile_of(values: Ints, counts: Ints, share: float) -> int:
    """The least value, of ordered ones, that `share` of the counts do not exceed. Assumption: there is one."""
    running = np.cumsum(counts)
    return int(values[np.searchsorted(running, max(1, np.ceil(share * running[-1])))])
