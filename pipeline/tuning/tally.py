"""Counts of values by group, batch by batch."""

from collections.abc import Iterator

import numpy as np

from tidemark.pipeline.replay.totals import Totals
from tidemark.pipeline.watermark.histogram import Ints, grouped

COUNTS = (np.add,)


class Tally:
    """Counts of values by group."""

    def __init__(self) -> None:
        self._cells = Totals(2, COUNTS)

    def add(self, groups: Ints, values: Ints) -> None:
        """Count each pair of two arrays of one length."""
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
