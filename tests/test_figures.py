"""Durations as people write them, and the one definition of a quantile, against a plain sorted list."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import bounded
from tidemark.pipeline.clock import LONGEST, format_duration, parse_duration
from tidemark.pipeline.figures import quantile

MILLISECOND = timedelta(milliseconds=1)


def test_a_duration_is_read_with_its_unit_and_written_short() -> None:
    read = {
        "0": timedelta(0),
        "0.5s": timedelta(milliseconds=500),
        "1h30m": timedelta(minutes=90),
        "1d2h3m4s5ms": timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5),
    }
    assert {text: parse_duration(text) for text in read} == read
    written = {
        timedelta(seconds=59, microseconds=999_600): "1m",
        timedelta(seconds=-90): "-1m30s",
        timedelta(microseconds=-400): "0s",
    }
    assert {duration: format_duration(duration) for duration in written} == written


@pytest.mark.parametrize("text", ["", "10", "s", "10 s", "-5s", "1e3s", ".5s", "x10s", 5])
def test_anything_else_is_refused_with_an_example_that_is_right(text: Any) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 500ms, 10s, 5m, 1h30m or 7d"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["999999999999d", "999999999d999999999d", "36500d1ms"])
def test_a_duration_beyond_all_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 36500d, the longest that can be handled"):
        parse_duration(text)


@bounded
@given(st.integers(0, LONGEST // MILLISECOND).map(lambda count: count * MILLISECOND))
def test_whole_milliseconds_are_read_back_exactly(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60), st.floats(0, 1))
@bounded
def test_a_quantile_is_the_least_value_that_the_share_does_not_exceed(values: list[int], share: float) -> None:
    ordered = sorted(values)
    expected = next(value for number, value in enumerate(ordered, start=1) if number / len(ordered) >= share)
    counted = Counter(values)
    assert quantile(values, share) == expected
    assert quantile(list(counted), share, list(counted.values())) == expected
