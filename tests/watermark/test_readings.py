"""What is outstanding: the largest reading of an epoch counts, and a fall begins a new epoch."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import at, bounded, reading, seconds
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading, follow

TOLERANCE = seconds(30)


def folded(*readings: Reading | None) -> EffectiveReading:
    state: EffectiveReading | None = None
    for each in readings:
        state = follow(state, each, TOLERANCE)
    assert state is not None
    return state


def test_a_reading_that_is_seen_again_is_as_old_as_it_was_seen_last() -> None:
    stuck = folded(reading(100, 95), reading(160, 95), reading(130, 95))
    assert (stuck.oldest_unacked, stuck.observed_at, stuck.newest) == (at(95), at(160), reading(160, 95))


def test_a_fall_is_measured_from_the_effective_reading_and_not_from_the_newest() -> None:
    assert folded(reading(100, 90), reading(110, 70), reading(120, 59)).epoch == 2
    assert folded(reading(100, 90), reading(110, 70), reading(120, 61)).epoch == 1


def test_an_old_low_reading_that_comes_late_is_no_seek() -> None:
    state = folded(reading(100, 10), reading(200, 190), reading(150, 20))
    assert (state.epoch, state.oldest_unacked, state.newest) == (1, at(190), reading(200, 190))


def test_observations_from_before_the_epoch_are_passed_over() -> None:
    sought = folded(reading(100, 90), reading(200, 10))
    assert sought.epoch == 2
    assert follow(sought, reading(199, 195), TOLERANCE) is sought
    assert folded(reading(100, 90), reading(200, 10), reading(200, 15)).oldest_unacked == at(15)


climbing = st.lists(st.tuples(st.integers(1, 60), st.integers(-3, 40)), min_size=2, max_size=8)
"""Steps of (time between observations, rise of the oldest unacknowledged publish time), in seconds."""


def readings_from(steps: list[tuple[int, int]]) -> list[Reading]:
    observed, oldest = 0, 0
    result = []
    for later, rise in steps:
        observed, oldest = observed + later, oldest + rise
        result.append(reading(observed, oldest))
    return result


@bounded
@given(climbing, st.randoms(use_true_random=False))
def test_the_effective_reading_is_the_largest_of_its_epoch_in_any_order_of_folding(
    steps: list[tuple[int, int]], shuffler: random.Random
) -> None:
    first, *others = readings_from(steps)
    shuffler.shuffle(others)
    state = folded(first, *others)
    assert state.epoch == 1
    assert state.oldest_unacked == max(each.oldest_unacked for each in (first, *others))
    assert state.newest == max((first, *others), key=lambda each: each.observed_at)


@bounded
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(-100, 100)), min_size=1, max_size=12))
def test_within_an_epoch_the_effective_reading_never_falls_and_a_fall_is_an_epoch(steps: list[tuple[int, int]]) -> None:
    state: EffectiveReading | None = None
    of_epoch: list[Reading] = []
    for each in readings_from(steps):
        before, state = state, follow(state, each, TOLERANCE)
        assert state is not None
        if before is not None and each.oldest_unacked < before.oldest_unacked - TOLERANCE:
            assert state.epoch == before.epoch + 1
            of_epoch = []
        of_epoch.append(each)
        assert state.oldest_unacked == max(one.oldest_unacked for one in of_epoch)
        assert state.epoch_began == of_epoch[0].observed_at


def test_two_trackers_that_write_into_one_log_agree_whoever_wrote_first() -> None:
    start = reading(0, 0)
    later = [reading(10, 5), reading(11, 3), reading(12, 20), reading(13, 18, names=False)]
    outcomes = {folded(start, *order) for order in itertools.permutations(later)}
    assert outcomes == {folded(start, *later)}
