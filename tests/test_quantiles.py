"""The one definition of a quantile, against a plain sorted list."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import bounded
from tidemark.pipeline.figures import quantile


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60), st.floats(0, 1))
@bounded
def test_a_quantile_is_the_least_value_that_the_share_does_not_exceed(values: list[int], share: float) -> None:
    ordered = sorted(values)
    expected = next(value for number, value in enumerate(ordered, start=1) if number / len(ordered) >= share)
    counted = Counter(values)
    assert quantile(values, share) == expected
    assert quantile(list(counted), share, list(counted.values())) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.07, 7), (0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100)])
def test_a_share_that_falls_on_a_value_is_that_value(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected


def test_the_median_of_two_values_is_the_lower_one() -> None:
    assert quantile([2.5, 1.5], 0.5) == 1.5


def test_an_integer_stays_exact_whatever_its_size() -> None:
    assert quantile([(1 << 60) + 1, 1 << 61], 0.5) == (1 << 60) + 1
