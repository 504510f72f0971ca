"""Event-time windows: they cover the line, they are named by their start, and only some are due."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import bounded
from tidemark.pipeline.settings_sections import LENGTHS
from tidemark.pipeline.windows import Spans, Window, Windowing, due, runs_of_neighbours

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
FIVE_MINUTES = timedelta(minutes=5)

windowings = st.sampled_from(LENGTHS).map(lambda length: Windowing(length, FIRST))
moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))  # noqa: DTZ001
spans = st.timedeltas(timedelta(0), timedelta(days=3))


def window(number: int) -> Window:
    """The window so many windows after the first one."""
    return Window(FIRST + number * FIVE_MINUTES, FIRST + (number + 1) * FIVE_MINUTES)


# ------------------------------------------------------------------------------------------ covering the line


@bounded
@given(windowings, moments, spans)
def test_windows_between_moments_touch_without_overlap(windowing: Windowing, start: datetime, span: timedelta) -> None:
    end = start + span
    windows = list(windowing.between(start, end))
    assert all(one.end == following.start for one, following in pairwise(windows))
    assert all(windowing.containing(each.start) == each for each in windows)
    if windows:
        assert start <= windows[0].start < start + windowing.length
        assert end - windowing.length < windows[-1].end <= end
    else:
        assert span < 2 * windowing.length


# --------------------------------------------------------------------------------------------------- the names


@bounded
@given(windowings, moments)
def test_a_window_is_found_again_by_its_key(windowing: Windowing, moment: datetime) -> None:
    found = windowing.containing(moment)
    assert windowing.named(found.key) == found


@pytest.mark.parametrize(
    "key",
    [
        "2026-01-01T05-21Z",  # inside a window
        "2026-01-01T05:20Z",
        "2026-1-1T5-20Z",  # the same moment, but not the key
        "2026-13-01T05-20Z",
        "9999-12-31T23-55Z",  # its end is no date
        "",
    ],
)
def test_a_text_that_is_no_window_s_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"window|does not match|unconverted"):
        Windowing(FIVE_MINUTES, FIRST).named(key)


# ------------------------------------------------------------------------------------------------- neighbours


def test_windows_are_cut_into_stretches_without_a_gap() -> None:
    assert runs_of_neighbours([]) == []
    assert runs_of_neighbours([window(4), window(2), window(1), window(7)]) == [
        [window(1), window(2)],
        [window(4)],
        [window(7)],
    ]


# --------------------------------------------------------------------------------------------------------- due

CLOSED = range(1000)
LIVE = 50


def due_now(held: Iterable[int], computed: Iterable[int] = (), *, reach: int = 2) -> list[int]:
    """The windows that are due, where each one with a heartbeat is in the lookback of `reach` more."""
    spans = Spans(*(range(number, number + 1) for number in held))
    reached = Spans(*(range(number, number + 1 + reach) for number in held))
    done = Spans(*(range(number, number + 1) for number in computed))
    return [number for stretch in due(spans, reached, done, CLOSED, LIVE) for number in reversed(stretch)]


@bounded
@given(st.sets(st.integers(0, 1200), max_size=12), st.sets(st.integers(0, 999), max_size=30), st.integers(0, 20))
def test_what_is_due_is_what_each_window_alone_would_say(held: set[int], computed: set[int], reach: int) -> None:
    def is_due(window: int) -> bool:
        reached = any(window - reach <= number <= window for number in held)
        is_live = window >= len(CLOSED) - LIVE and any(window - LIVE <= number <= window for number in held)
        return window not in computed and (reached or is_live)

    assert due_now(held, computed, reach=reach) == [window for window in reversed(CLOSED) if is_due(window)]


stretches = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 12)).map(lambda one: range(one[0], sum(one))))


def numbers(found: list[range]) -> list[int]:
    return [number for stretch in found for number in reversed(stretch)]


def of(given: list[range]) -> set[int]:
    return {number for stretch in given for number in stretch}


@bounded
@given(stretches, st.integers(-70, 70), st.integers(0, 90))
def test_it_holds_what_was_added_in_stretches_however_it_was_made(given: list[range], low: int, width: int) -> None:
    kept = [stretch for stretch in given if stretch]
    lows, highs = (np.array([getattr(one, side) for one in kept], np.int64) for side in ("start", "stop"))
    bounds = range(low, low + width)
    together, afterwards = Spans(), Spans(*given[::2])
    together.add_all(lows, highs)
    afterwards.add_all(lows, highs)
    for spans in (Spans(*given), together, afterwards):
        found = list(spans.within(bounds))
        assert numbers(found) == sorted(of(given) & set(bounds), reverse=True)
        assert all(later.start > earlier.stop for later, earlier in pairwise(found))
        assert [number in spans for number in range(-70, 70)] == [number in of(given) for number in range(-70, 70)]
        assert (len(spans), spans.least) == (len(of(given)), min(of(given), default=None))


@bounded
@given(stretches, stretches, st.integers(-70, 70), st.integers(0, 90))
def test_the_difference_is_that_of_their_numbers(given: list[range], others: list[range], low: int, width: int) -> None:
    bounds = range(low, low + width)
    found = numbers(list(Spans(*given).without(Spans(*others), bounds)))
    assert found == sorted((of(given) - of(others)) & set(bounds), reverse=True)
