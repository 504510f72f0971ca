"""The peers' rules of `make compare`, on a few messages by hand, and the measures of the comparison."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from benchmarks.compare import rules
from benchmarks.compare.measure import Compared, Outcome, compare, outcome
from benchmarks.compare.rules import Watermark, beam, flink, spark
from benchmarks.compare.traces import SECOND_US, START_US, Traffic, traces

BOUND = timedelta(seconds=10)


def traffic(*messages: tuple[float, float]) -> Traffic:
    """Messages by event time and the moment of reading, in seconds from the start."""
    event, read = (np.array(column) * SECOND_US for column in zip(*messages, strict=True))
    event_us, read_us = (START_US + column.astype(np.int64) for column in (event, read))
    counted = np.ones(len(messages), dtype=np.bool_)
    return Traffic("by hand", read_us, event_us, read_us, read_us, counted, START_US)


def at(mark: Watermark, seconds: float) -> float | None:
    """The watermark in force at a moment, in seconds from the start; None: there is none."""
    step = np.searchsorted(mark.at_us, START_US + round(seconds * SECOND_US), side="right") - 1
    value = int(mark.value_us[step])
    return None if step < 0 or value < 0 else (value - START_US) / SECOND_US


@pytest.fixture(autouse=True)
def _one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "READERS", 1)


def test_flink_s_is_the_greatest_event_time_less_the_bound_and_never_back() -> None:
    mark = flink(traffic((100, 101), (50, 102), (130, 131)), BOUND, idleness=False)
    assert [at(mark, moment) for moment in (100.5, 101.5, 102.5, 131.5)] == [None, 90, 90, 120]


def test_flink_s_readers_hold_each_other_and_an_idle_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "READERS", 2)
    first, second = np.array([100.0]), np.arange(100.0, 400.0, 5)
    dealt = [(moments, moments + 1) for moments in (first, second)]
    in_us = [tuple(START_US + (column * SECOND_US).astype(np.int64) for column in pair) for pair in dealt]
    monkeypatch.setattr(rules, "_readers", lambda _: in_us)
    both = traffic(*((moment, moment + 1) for moment in second))
    assert at(flink(both, BOUND, idleness=False), 390) == 90
    idle = flink(both, BOUND, idleness=True)
    assert at(idle, 150) == 90
    assert at(idle, 390) == 375


def test_spark_s_moves_between_batches() -> None:
    mark = spark(traffic((100, 101.3), (130, 131.3)), BOUND)
    assert [at(mark, moment) for moment in (101.5, 102.0, 131.9, 132.0)] == [None, 90, 90, 120]
    assert mark.ready_after_us == SECOND_US


def test_beam_s_is_the_least_of_the_last_minute_and_the_present_after_a_minute_without_any() -> None:
    mark = beam(traffic(*((moment, moment + 2) for moment in range(0, 101, 2))))
    assert 30 <= (at(mark, 100) or 0) <= 45
    assert at(mark, 200) == 200


def test_beam_s_reader_that_was_stopped_does_not_jump_to_the_present() -> None:
    read = [(0, 2), (2, 4), *((moment, moment + 400) for moment in range(10, 60, 2))]
    stopped = replace(traffic(*read), stopped_us=(START_US + 5 * SECOND_US, START_US + 405 * SECOND_US))
    assert (at(beam(stopped), 408) or 0) < 60
    assert (at(beam(traffic(*read)), 408) or 0) > 300


def test_a_message_is_late_if_its_window_was_passed_before_it_was_read() -> None:
    mark = Watermark(START_US + np.array([0, 100]) * SECOND_US, START_US + np.array([0, 60]) * SECOND_US)
    assert outcome("", traffic((59, 100), (60, 101), (10, 2000)), mark).late_share == pytest.approx(1 / 3)


def test_the_best_setting_is_the_freshest_with_few_enough_late() -> None:
    tried = [Outcome("a", 0.2, 5, 6), Outcome("b", 0.0001, 20, 21), Outcome("c", 0, 30, 31), Outcome("d", 0, np.inf, 1)]
    assert Compared(tried, tried[0]).best.setting == "b"
    assert Compared([tried[0], Outcome("e", 0.1, 50, 60)], tried[0]).best.setting == "e"


def test_the_traces_follow_from_the_seed() -> None:
    first, again, other = (traces(seed, minutes=30) for seed in (1, 1, 2))
    for name, made in first.items():
        assert np.array_equal(made.event_us, again[name].event_us)
        assert not np.array_equal(made.event_us, other[name].event_us)
        assert (made.landed_us >= made.publish_us).all()
        assert (made.tracked_us >= made.publish_us).all()


@pytest.fixture
def at_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.compare.measure.BANDS", (BOUND,))
    monkeypatch.setattr("benchmarks.compare.measure.BOUNDS", (BOUND,))


@pytest.mark.usefixtures("at_ten_seconds")
def test_after_an_outage_the_order_of_the_backlog_decides_what_the_peers_lose() -> None:
    both = traces(1, minutes=45)
    at_random, in_order = compare(both["outage"]), compare(both["outage in order"])
    for rule in ("`band`", "`frontier`", "`frontier`, no slack", "Dataflow, described"):
        assert at_random[rule].default.late_share == in_order[rule].default.late_share == 0
    assert max(found["Beam"].default.late_share for found in (at_random, in_order)) < 0.01
    for rule in ("Flink", "Flink, idleness", "Spark"):
        assert at_random[rule].default.late_share > 0.2
        assert in_order[rule].default.late_share < 0.01


@pytest.mark.usefixtures("at_ten_seconds")
def test_only_the_anchor_saves_an_older_message_that_follows_a_newer_one_after_a_pause() -> None:
    found = compare(traces(1, minutes=45)["on the minute"])
    assert found["`band`"].default.late_share == 0 < found["Dataflow, described"].default.late_share
