"""Sums by key and counts of values, batch by batch: memory follows the number of distinct keys, not the number of
rows."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from tidemark.pipeline.watermark.histogram import Ints, grouped

FEWEST_ROWS_TO_MERGE = 1 << 17
"""Waiting batches are merged once they have more rows than this and than the table, so that merging stays cheap."""


class Totals:
    """Rows of int64 columns, one row per key. The first `keys` columns are the key; each other column is combined by
    its function in `merges`."""

    def __init__(self, keys: int, merges: Sequence[np.ufunc]) -> None:
        self._merges = merges
        self._parts = [list(np.empty((keys + len(merges), 0), dtype=np.int64))]  # the table, then waiting batches
        self._waiting = 0

    def add(self, *columns: Ints) -> None:
        """Add rows, as arrays of equal length."""
        self._parts.append(grouped(columns, self._merges))
        self._waiting += len(self._parts[-1][0])
        if self._waiting > max(len(self._parts[0][0]), FEWEST_ROWS_TO_MERGE):
            self.rows()

    def rows(self) -> list[Ints]:
        """Return one row per key, in the order of the keys, as columns."""
        if len(self._parts) > 1:
            joined = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
            self._parts, self._waiting = [grouped(joined, self._merges)], 0
        return self._parts[0]

    def groups(self) -> Iterator[tuple[int, list[Ints]]]:
        """Yield each value of the first column, in order, with the other columns of its rows."""
        first, *others = self.rows()
        present, starts = np.unique(first, return_index=True)
        for value, (low, high) in zip(present.tolist(), pairwise([*starts.tolist(), len(first)]), strict=True):
            yield value, [column[low:high] for column in others]


COUNTS = (np.add,)


class Tally:
    """Counts of values by group."""

    def __init__(self) -> None:
        self._cells = Totals(2, COUNTS)

    def add(self, groups: Ints, values: Ints) -> None:
        """Count each pair of values from two arrays of equal length."""
        self._cells.add(groups, values, np.ones_like(values))

    def whole(self) -> tuple[Ints, Ints]:
        """Return values and counts over all groups, in order of value."""
        _, *cells = self._cells.rows()
        values, counts = grouped(cells, COUNTS)
        return values, counts

    def of(self, group: int) -> tuple[Ints, Ints]:
        """Return one group's values and counts, in order of value."""
        groups, values, counts = self._cells.rows()
        own = slice(*np.searchsorted(groups, [group, group + 1]).tolist())
        return values[own], counts[own]

    def groups(self) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield each group, in order, with its values and counts."""
        for group, (values, counts) in self._cells.groups():
            yield group, values, counts
