"""Whose turn it is: a window that keeps failing is soon alone in its rest, and every other one gets its turn."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.turns import LONGEST_REST, Attempt, take_turn
from pipeline.windows import Window, Windowing
from tests.watermark.builders import START, at, bounded, seconds

WINDOWS = list(Windowing(seconds(60), START).between(START, at(6000)))


def attempt(first: Window, last: Window, ended_at: datetime, *, failed: bool = True) -> Attempt:
    return Attempt(first.key, last.key, failed, ended_at)


def test_without_attempts_it_is_the_first_stretch_that_takes_its_turn() -> None:
    turn = take_turn([*WINDOWS[:3], *WINDOWS[5:8]], [], at(0), 288)
    assert (turn.windows, turn.resting, turn.sentence) == (WINDOWS[:3], [], "")
    assert take_turn(WINDOWS, [], at(0), 10).windows == WINDOWS[:10]
    assert take_turn([], [], at(0), 10).windows == ()


def test_a_window_that_failed_rests_and_is_named_and_the_next_one_goes_on() -> None:
    failed = [attempt(WINDOWS[0], WINDOWS[0], at(seconds)) for seconds in (100, 50, 0)]
    turn = take_turn(WINDOWS[:3], failed, at(101), 288)
    assert turn.windows == WINDOWS[1:3]
    assert turn.sentence == "resting after failures: 2026-11-21T05-20Z (3 failed, again at 2026-11-21T05:22:40Z)"
    assert take_turn(WINDOWS[:3], failed, at(160), 288).windows == WINDOWS[:1]


@pytest.mark.parametrize(("failures", "rest"), [(1, 15), (2, 30), (3, 60), (6, 480), (7, 600), (90, 600)])
def test_its_rest_grows_up_to_ten_minutes(failures: int, rest: float) -> None:
    failed = [attempt(WINDOWS[0], WINDOWS[0], at(0))] * failures
    assert take_turn(WINDOWS[:1], failed, at(rest - 1), 288).windows == ()
    assert take_turn(WINDOWS[:1], failed, at(rest), 288).windows == WINDOWS[:1]


def test_failures_before_a_success_do_not_count() -> None:
    history = [
        attempt(WINDOWS[0], WINDOWS[9], at(50), failed=False),
        *[attempt(WINDOWS[0], WINDOWS[0], at(49))] * 5,
    ]
    assert take_turn(WINDOWS[:1], history, at(51), 288).windows == WINDOWS[:1]


def test_after_one_failure_all_are_tried_again_together_with_what_has_closed_since() -> None:
    history = [attempt(WINDOWS[0], WINDOWS[63], at(0))]
    assert take_turn(WINDOWS[:70], history, at(100), 288).windows == WINDOWS[:70]


def test_windows_that_go_on_failing_together_are_tried_by_quarters_of_what_failed() -> None:
    history = [attempt(WINDOWS[0], WINDOWS[63], at(number)) for number in (2, 1, 0)]
    assert take_turn(WINDOWS[:70], history, at(100), 288).windows == WINDOWS[:16]
    history.insert(0, attempt(WINDOWS[0], WINDOWS[15], at(101), failed=False))
    assert take_turn(WINDOWS[16:70], history, at(102), 288).windows == WINDOWS[16:32]
    assert take_turn(WINDOWS[64:70], history, at(102), 288).windows == WINDOWS[64:70]  # those had never failed
    history.insert(0, attempt(WINDOWS[16], WINDOWS[31], at(103)))
    assert take_turn(WINDOWS[16:70], history, at(300), 288).windows == WINDOWS[16:20]


def test_when_many_windows_rest_a_few_are_named_and_the_others_counted() -> None:
    turn = take_turn(WINDOWS[:5], [attempt(WINDOWS[0], WINDOWS[4], at(0))], at(1), 288)
    assert turn.windows == ()
    assert turn.sentence.endswith("and 2 more")


@bounded
@given(st.sets(st.integers(0, 59), max_size=3), st.integers(1, 60))
def test_all_but_the_windows_that_always_fail_are_computed_before_long(bad: set[int], max_windows: int) -> None:
    """A model of the sensor: every ten seconds one run, which fails if any of its windows does."""
    wanted, attempts, now = WINDOWS[:60], list[Attempt](), 0.0
    names = {WINDOWS[number] for number in bad}
    while set(wanted) - names:
        now += 10
        assert now < 4 * LONGEST_REST.total_seconds() + 10 * 60
        turn = take_turn(wanted, attempts, at(now), max_windows)
        if turn.windows:
            failed = bool(names & set(turn.windows))
            attempts.insert(0, attempt(turn.windows[0], turn.windows[-1], at(now), failed=failed))
            if not failed:
                wanted = [window for window in wanted if window not in turn.windows]
    assert set(wanted) <= names
