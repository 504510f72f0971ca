"""Totals and counts by key, against a plain dictionary."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import bounded, ints
from tidemark.pipeline.replay.trace import Tally, Totals

pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(-20, 20)), max_size=60)


def counted(tally: Tally) -> list[tuple[int, int, int]]:
    return [
        (group, value, count)
        for group, values, counts in tally.groups()
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]


@given(st.lists(pairs, max_size=4))
@bounded
def test_pairs_are_counted_whatever_their_batches(batches: list[list[tuple[int, int]]]) -> None:
    tally = Tally()
    for batch in batches:
        tally.add(ints(group for group, _ in batch), ints(value for _, value in batch))
    expected = Counter(pair for batch in batches for pair in batch)
    assert counted(tally) == [(*pair, count) for pair, count in sorted(expected.items())]
    values, counts = tally.whole()
    whole = Counter(value for batch in batches for _, value in batch)
    assert list(zip(values.tolist(), counts.tolist(), strict=True)) == sorted(whole.items())
    for group in range(-4, 5):
        values, counts = tally.of(group)
        own = Counter(value for batch in batches for other, value in batch if other == group)
        assert list(zip(values.tolist(), counts.tolist(), strict=True)) == sorted(own.items())


@given(st.lists(pairs, max_size=4))
@bounded
def test_totals_are_merged_column_by_column_whatever_their_batches(batches: list[list[tuple[int, int]]]) -> None:
    totals = Totals(1, [np.add, np.minimum, np.maximum])
    for batch in batches:
        keys, values = ints(key for key, _ in batch), ints(value for _, value in batch)
        totals.add(keys, values, values, values)
    by_key: dict[int, list[int]] = {}
    for key, value in (pair for batch in batches for pair in batch):
        by_key.setdefault(key, []).append(value)
    rows = zip(*(column.tolist() for column in totals.rows()), strict=True)
    assert list(rows) == [(key, sum(own), min(own), max(own)) for key, own in sorted(by_key.items())]


def test_many_batches_stay_as_few_cells_as_there_are_different_pairs() -> None:
    tally = Tally()
    random = np.random.default_rng(1)
    for _ in range(40):
        tally.add(random.integers(0, 100, 10_000), random.integers(0, 100, 10_000))
    cells = counted(tally)
    assert len(cells) <= 10_000
    assert sum(count for _, _, count in cells) == 400_000
