"""The peers' rules of `make compare`, on a few messages by hand, and the measures of the comparison."""

from datetime import timedelta

import numpy as np
import pytest

from benchmarks.compare import rules
from benchmarks.compare.measure import compare
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


def test_spark_s_moves_between_batches() -> None:
    mark = spark(traffic((100, 101.3), (130, 131.3)), BOUND)
    assert [at(mark, moment) for moment in (101.5, 102.0, 131.9, 132.0)] == [None, 90, 90, 120]
    assert mark.ready_after_us == SECOND_US


def test_beam_s_is_the_least_of_the_last_minute_and_the_present_after_a_minute_without_any() -> None:
    mark = beam(traffic(*((moment, moment + 2) for moment in range(0, 101, 2))))
    assert 30 <= (at(mark, 100) or 0) <= 45
    assert at(mark, 200) == 200


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
