"""Whose turn it is: a window that keeps failing is soon alone in its rest, and every other one gets its turn."""

from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import START, at, bounded, seconds
from tidemark.assets.scheduler.turns import (
    FIRST,
    LONGEST,
    LONGEST_REST,
    Attempt,
    Front,
    resting_sentence,
    room_for_older,
    take_turn,
)
from tidemark.pipeline.windows import Spans, Windowing

WINDOWING = Windowing(seconds(60), START)


def attempt(windows: range, ended_at: float, *, failed: bool = True) -> Attempt:
    return Attempt(Spans(windows), failed, at(ended_at), at(ended_at))


def chosen(wanted: Iterable[range], attempts: list[Attempt], now: float, most: int = 288) -> list[int]:
    return take_turn(wanted, attempts, at(now), most)[0]


def test_a_window_that_failed_rests_and_is_named_and_the_others_go_on() -> None:
    failing = WINDOWING.number_of(START)
    failed = [attempt(range(failing, failing + 1), ended) for ended in (100, 50, 0)]
    others, resting = take_turn([range(failing, failing + 3)], failed, at(101), 288)
    assert others == [failing + 2, failing + 1]
    said = resting_sentence(resting, WINDOWING)
    assert said == "1 windows are on hold after failures, 2026-11-21T05-20Z until 2026-11-21T05:22:40Z"
    assert chosen([range(failing, failing + 1)], failed, 160) == [failing]


@pytest.mark.parametrize(
    ("wanted", "history", "now", "turn"),
    [
        ([range(5, 8), range(3)], [], 0, [7, 6, 5, 2, 1, 0]),
        ([range(1000)], [], 0, list(range(999, 711, -1))),
        ([range(70)], [attempt(range(64), 0)], 100, list(range(69, -1, -1))),
        ([range(1)], [attempt(range(10), 50, failed=False), *[attempt(range(1), 49)] * 5], 51, [0]),
        *(
            ([range(1)], [attempt(range(1), 0)] * failures, rest + over, [0] * (over + 1))
            for failures, rest in [(1, 15), (2, 30), (3, 60), (6, 480), (7, 600), (90, 600)]
            for over in (-1, 0)
        ),
    ],
)
def test_the_newest_take_their_turn_and_rest_up_to_ten_minutes_after_failures(
    wanted: list[range], history: list[Attempt], now: float, turn: list[int]
) -> None:
    assert chosen(wanted, history, now) == turn


def test_windows_that_go_on_failing_together_are_tried_by_quarters_of_what_failed() -> None:
    history = [attempt(range(6, 70), number) for number in (2, 1, 0)]
    assert chosen([range(70)], history, 100) == list(range(69, 53, -1))
    history.insert(0, attempt(range(54, 70), 101, failed=False))
    assert chosen([range(54)], history, 102) == list(range(53, 37, -1))
    assert chosen([range(6)], history, 102) == list(range(5, -1, -1))  # those had never failed
    history.insert(0, attempt(range(38, 54), 103))
    assert chosen([range(54)], history, 300) == list(range(53, 49, -1))


@bounded
@given(st.sets(st.integers(0, 59), max_size=3), st.integers(1, 60))
def test_all_but_the_windows_that_always_fail_are_computed_before_long(bad: set[int], max_windows: int) -> None:
    """A model of the sensor: every ten seconds one run, which fails if any of its windows does."""
    left, attempts, now = set(range(60)), list[Attempt](), 0.0
    while left - bad:
        now += 10
        assert now < 4 * LONGEST_REST.total_seconds() + 10 * 60
        wanted = Spans(*(range(number, number + 1) for number in left)).within(range(60))
        turn = chosen(wanted, attempts, now, max_windows)
        if turn:
            tried = Spans(*(range(number, number + 1) for number in turn))
            failed = bool(bad & set(turn))
            attempts.insert(0, Attempt(tried, failed, at(now), at(now)))
            if not failed:
                left -= set(turn)
    assert left <= bad


# Live windows, and the room that they leave


def front(watermark: float, now: float | None = None) -> Front:
    return Front.of(WINDOWING, at(watermark), at(watermark + 18 if now is None else now))


def room(now: float, *ended: Attempt, gap: float) -> int:
    there = Front(0, 1000, seconds(gap))
    return room_for_older(there, 1, [], ended, at(now), waited=seconds(0), live_due=False)[0]


def run_of(windows: int, began: float, ended: float) -> Attempt:
    return Attempt(Spans(range(windows)), False, at(began), at(ended), is_backlog=True)


def test_live_windows_end_within_ten_minutes_of_the_watermark() -> None:
    found = front(1205)
    assert (found.first_live, found.first_open) == (WINDOWING.number_of(at(605)), WINDOWING.number_of(at(1200)))
    assert found.gap == seconds(55), "the watermark goes on as the clock does"
    day = Front.of(Windowing(timedelta(days=1), START), at(0), at(1))
    assert day.first_live == day.first_open - 1, "the newest closed window, however long"


def test_nothing_is_live_while_the_watermark_is_far_behind() -> None:
    behind = front(0, 3601)
    assert (behind.first_live, behind.gap) == (behind.first_open, LONGEST)


@pytest.mark.parametrize("seconds_per_window", [0.01, 0.5, 20])
@pytest.mark.parametrize("gap", [20, 60, 86_400])
def test_a_run_over_older_windows_grows_until_it_fills_the_gap_between_live_ones(
    seconds_per_window: float, gap: float
) -> None:
    sizes, now = [room(0, gap=gap)], 0.0
    for _ in range(6):
        took = sizes[-1] * seconds_per_window
        sizes.append(room(now + took, run_of(sizes[-1], now, now + took), gap=gap))
        now += took
    assert sizes[0] == FIRST
    assert all(later <= 4 * max(earlier, FIRST) for earlier, later in pairwise(sizes))
    time = min(gap, 60) - 5
    assert sizes[-1] * max(seconds_per_window, 1 / sizes[-1]) <= max(time, seconds_per_window)
    assert sizes[-1] > 100 or sizes[-1] == max(1, int(time / seconds_per_window))
