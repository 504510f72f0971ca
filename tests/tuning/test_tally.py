"""Sparse counts by group, against a plain dictionary."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tuning.tally import GROUPS, LARGEST, Tally, quantile_of
from tests.watermark.builders import bounded, ints

pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(-20, 20)), max_size=60)


@given(st.lists(pairs, max_size=4))
@bounded
def test_pairs_are_counted_whatever_their_batches(batches: list[list[tuple[int, int]]]) -> None:
    tally = Tally()
    for batch in batches:
        tally.add(ints(group for group, _ in batch), ints(value for _, value in batch))
    expected = Counter(pair for batch in batches for pair in batch)
    groups, values, counts = tally.cells()
    assert dict(zip(zip(groups.tolist(), values.tolist(), strict=True), counts.tolist(), strict=True)) == expected
    assert sorted(zip(groups, values, strict=True)) == list(zip(groups, values, strict=True))
    values, counts = tally.whole()
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == Counter(
        value for batch in batches for _, value in batch
    )


@given(pairs, st.floats(0, 1))
@bounded
def test_a_groups_quantile_is_one_of_its_values_that_so_many_do_not_exceed(
    batch: list[tuple[int, int]], share: float
) -> None:
    tally = Tally()
    tally.add(ints(group for group, _ in batch), ints(value for _, value in batch))
    groups, found = tally.quantiles(share)
    assert groups.tolist() == sorted({group for group, _ in batch})
    for group, quantile in zip(groups.tolist(), found.tolist(), strict=True):
        own = sorted(value for other, value in batch if other == group)
        assert quantile == own[max(1, int(np.ceil(share * len(own)))) - 1]
        assert quantile == quantile_of(ints(own), ints([1] * len(own)), share)


def test_what_does_not_fit_is_counted_as_the_nearest_that_does() -> None:
    tally = Tally()
    tally.add(ints([GROUPS * 5, -GROUPS * 5, 7]), ints([3, LARGEST * 8, -LARGEST * 8]))
    groups, values, counts = tally.cells()
    assert groups.tolist() == [-GROUPS, 7, GROUPS - 1]
    assert values.tolist() == [LARGEST - 1, -LARGEST, 3]
    assert counts.tolist() == [1, 1, 1]


def test_many_batches_stay_as_few_cells_as_there_are_different_pairs() -> None:
    tally = Tally()
    random = np.random.default_rng(1)
    for _ in range(40):
        tally.add(random.integers(0, 100, 10_000), random.integers(0, 100, 10_000))
    groups, _, counts = tally.cells()
    assert len(groups) <= 10_000
    assert counts.sum() == 400_000
