"""Whose turn it is: a window that keeps failing is soon alone in its rest, and every other one gets its turn."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import START, at, bounded, seconds
from tidemark.assets.turns import LONGEST_REST, Attempt, Turn, take_turn
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(seconds(60), START)


def attempt(windows: range, ended_at: float, *, failed: bool = True) -> Attempt:
    return Attempt(Spans(windows), failed, at(ended_at), at(ended_at))


def turn_of(
    wanted: Iterable[range], attempts: list[Attempt], now: float, most: int = 288, *, contiguous: bool = False
) -> Turn:
    return take_turn(wanted, attempts, at(now), most, contiguous=contiguous)


def test_without_attempts_the_newest_take_their_turn() -> None:
    wanted = [range(5, 8), range(3)]
    turn = turn_of(wanted, [], 0)
    assert (turn.windows, turn.resting, turn.sentence(WINDOWING)) == ([7, 6, 5, 2, 1, 0], [], "")
    assert turn_of(wanted, [], 0, contiguous=True).windows == [7, 6, 5]
    assert turn_of([range(100)], [], 0, 10).windows == list(range(99, 89, -1))
    assert turn_of([], [], 0).windows == []


def test_no_more_is_looked_at_than_a_turn_takes() -> None:
    looked_at = []

    def stretches() -> Iterable[range]:
        for number in range(10_000, 0, -2):
            looked_at.append(number)
            yield range(number, number + 1)

    assert len(turn_of(stretches(), [], 0, 10).windows) == len(looked_at) == 10


def test_a_window_that_failed_rests_and_is_named_and_the_others_go_on() -> None:
    failing = WINDOWING.number_of(START)
    failed = [attempt(range(failing, failing + 1), ended) for ended in (100, 50, 0)]
    turn = turn_of([range(failing, failing + 3)], failed, 101)
    assert turn.windows == [failing + 2, failing + 1]
    assert turn_of([range(failing, failing + 1)], failed, 101).windows == []
    said = turn_of([range(failing, failing + 1)], failed, 101).sentence(WINDOWING)
    assert said == "resting after failures: 2026-11-21T05-20Z (3 failed, again at 2026-11-21T05:22:40Z)"
    assert turn_of([range(failing, failing + 1)], failed, 160).windows == [failing]


@pytest.mark.parametrize(("failures", "rest"), [(1, 15), (2, 30), (3, 60), (6, 480), (7, 600), (90, 600)])
def test_its_rest_grows_up_to_ten_minutes(failures: int, rest: float) -> None:
    failed = [attempt(range(1), 0)] * failures
    assert turn_of([range(1)], failed, rest - 1).windows == []
    assert turn_of([range(1)], failed, rest).windows == [0]


def test_failures_before_a_success_do_not_count() -> None:
    history = [attempt(range(10), 50, failed=False), *[attempt(range(1), 49)] * 5]
    assert turn_of([range(1)], history, 51).windows == [0]


def test_after_one_failure_all_are_tried_again_together_with_what_has_closed_since() -> None:
    assert turn_of([range(70)], [attempt(range(64), 0)], 100).windows == list(range(69, -1, -1))


def test_windows_that_go_on_failing_together_are_tried_by_quarters_of_what_failed() -> None:
    history = [attempt(range(6, 70), number) for number in (2, 1, 0)]
    assert turn_of([range(70)], history, 100).windows == list(range(69, 53, -1))
    history.insert(0, attempt(range(54, 70), 101, failed=False))
    assert turn_of([range(54)], history, 102).windows == list(range(53, 37, -1))
    assert turn_of([range(6)], history, 102).windows == list(range(5, -1, -1))  # those had never failed
    history.insert(0, attempt(range(38, 54), 103))
    assert turn_of([range(54)], history, 300).windows == list(range(53, 49, -1))


def test_when_many_windows_rest_a_few_are_named_and_the_others_counted() -> None:
    turn = turn_of([range(5)], [attempt(range(5), 0)], 1)
    assert turn.windows == []
    assert turn.sentence(WINDOWING).endswith("and 2 more")


@bounded
@given(st.sets(st.integers(0, 59), max_size=3), st.integers(1, 60), st.booleans())
def test_all_but_the_windows_that_always_fail_are_computed_before_long(
    bad: set[int], max_windows: int, contiguous: bool
) -> None:
    """A model of the sensor: every ten seconds one run, which fails if any of its windows does."""
    left, attempts, now = set(range(60)), list[Attempt](), 0.0
    while left - bad:
        now += 10
        assert now < 4 * LONGEST_REST.total_seconds() + 10 * 60
        wanted = Spans(*(range(number, number + 1) for number in left)).within(range(60))
        turn = turn_of(wanted, attempts, now, max_windows, contiguous=contiguous)
        if turn.windows:
            tried = Spans(*(range(number, number + 1) for number in turn.windows))
            failed = bool(bad & set(turn.windows))
            attempts.insert(0, Attempt(tried, failed, at(now), at(now)))
            if not failed:
                left -= set(turn.windows)
    assert left <= bad
