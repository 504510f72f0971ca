"""A set of whole numbers as stretches: the same as a set, and as small as it has gaps."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import bounded
from tidemark.pipeline.windows import Spans

stretches = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 12)).map(lambda one: range(one[0], sum(one))))


def numbers(found: list[range]) -> list[int]:
    return [number for stretch in found for number in reversed(stretch)]


def of(given: list[range]) -> set[int]:
    return {number for stretch in given for number in stretch}


@bounded
@given(stretches, st.integers(-70, 70), st.integers(0, 90))
def test_it_holds_what_was_added_however_it_was_made(given: list[range], low: int, width: int) -> None:
    kept = [stretch for stretch in given if stretch]
    lows, highs = (np.array([getattr(one, side) for one in kept], np.int64) for side in ("start", "stop"))
    bounds = range(low, low + width)
    for spans in (Spans(*given), Spans.of(lows, highs)):
        assert numbers(list(spans.within(bounds))) == sorted(of(given) & set(bounds), reverse=True)
        assert [number in spans for number in range(-70, 70)] == [number in of(given) for number in range(-70, 70)]
        assert (len(spans), spans.least) == (len(of(given)), min(of(given), default=None))


@bounded
@given(stretches)
def test_stretches_neither_overlap_nor_touch(given: list[range]) -> None:
    found = list(Spans(*given).within(range(-100, 100)))
    assert all(later.start > earlier.stop for later, earlier in pairwise(found))


@bounded
@given(stretches, stretches, st.integers(-70, 70), st.integers(0, 90))
def test_the_difference_of_two_is_that_of_their_numbers(
    given: list[range], others: list[range], low: int, width: int
) -> None:
    bounds = range(low, low + width)
    found = numbers(list(Spans(*given).without(Spans(*others), bounds)))
    assert found == sorted((of(given) - of(others)) & set(bounds), reverse=True)
