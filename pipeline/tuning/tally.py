"""Figures added up by key, batch by batch: memory follows the number of different keys, not of rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemark.pipeline.watermark.histogram import Ints

FEWEST_ROWS_TO_MERGE = 100_000
"""Batches wait until they have this many rows and at least as many as the table so far, so merging stays cheap."""


class Totals:
    """Rows of int64 columns, one for each key. `merge` says how each other column is combined: sum, min or max."""

    def __init__(self, keys: Sequence[str], merge: Mapping[str, str]) -> None:
        self._keys, self._merge = list(keys), merge
        self._parts = [pa.table({name: pa.array([], pa.int64()) for name in (*keys, *merge)})]
        self._waiting = 0

    def add(self, **columns: Ints) -> None:
        """Add rows: arrays of one length, by column."""
        self._parts.append(self._grouped(pa.table(columns)))
        self._waiting += len(self._parts[-1])
        if self._waiting > max(FEWEST_ROWS_TO_MERGE, len(self._parts[0])):
            self.rows()

    def rows(self) -> pa.Table:
        """One row for each key, in the order of the keys."""
        if len(self._parts) > 1:
            merged = self._grouped(pa.concat_tables(self._parts))
            self._parts = [merged.sort_by([(key, "ascending") for key in self._keys]).combine_chunks()]
            self._waiting = 0
        return self._parts[0]

    def _grouped(self, table: pa.Table) -> pa.Table:
        grouped = table.group_by(self._keys, use_threads=False).aggregate(list(self._merge.items()))
        return grouped.select([*self._keys, *(f"{name}_{how}" for name, how in self._merge.items())]).rename_columns(
            [*self._keys, *self._merge]
        )


class Tally:
    """How often each value occurs in each group."""

    def __init__(self) -> None:
        self._cells = Totals(["group", "value"], {"count": "sum"})

    def add(self, groups: Ints, values: Ints) -> None:
        """Count each pair of two arrays of one length."""
        self._cells.add(group=groups, value=values, count=np.ones_like(values))

    def whole(self) -> tuple[Ints, Ints]:
        """Values and counts over all groups, in order of value."""
        whole = self._cells.rows().group_by("value", use_threads=False).aggregate([("count", "sum")])
        values, counts = columns_of(whole.sort_by("value"), "value", "count_sum")
        return values, counts

    def of(self, group: int) -> tuple[Ints, Ints]:
        """One group's values and counts, in order of value."""
        groups, values, counts = columns_of(self._cells.rows(), "group", "value", "count")
        own = slice(*np.searchsorted(groups, [group, group + 1]).tolist())
        return values[own], counts[own]

    def groups(self) -> Iterator[tuple[int, Ints, Ints]]:
        """Each group that occurs, in order, with its values and counts."""
        groups, values, counts = columns_of(self._cells.rows(), "group", "value", "count")
        present, starts = np.unique(groups, return_index=True)
        for group, (low, high) in zip(present.tolist(), pairwise([*starts.tolist(), len(groups)]), strict=True):
            yield group, values[low:high], counts[low:high]


def columns_of(table: pa.Table, *names: str) -> tuple[Ints, ...]:
    return tuple(table[name].to_numpy() for name in names)
