"""The peers' rules of `make compare`, on a few messages by hand, and the measures of the comparison."""

from datetime import timedelta

import pytest

from benchmarks.compare.measure import compare
from benchmarks.compare.traces import traces

BOUND = timedelta(seconds=10)


@pytest.fixture(autouse=True)
def at_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.compare.measure.BANDS", (BOUND,))
    monkeypatch.setattr("benchmarks.compare.measure.BOUNDS", (BOUND,))


def test_after_an_outage_the_order_of_the_backlog_decides_what_the_peers_lose() -> None:
    both = traces(1, minutes=45)
    at_random, in_order = compare(both["outage"]), compare(both["outage in order"])
    for rule in ("`band`", "`frontier`", "`frontier`, no slack", "Dataflow, described"):
        assert at_random[rule].default.late_share == in_order[rule].default.late_share == 0
    assert max(found["Beam"].default.late_share for found in (at_random, in_order)) < 0.01
    for rule in ("Flink", "Flink, idleness", "Spark"):
        assert at_random[rule].default.late_share > 0.2
        assert in_order[rule].default.late_share < 0.01


def test_only_the_anchor_saves_an_older_message_that_follows_a_newer_one_after_a_pause() -> None:
    found = compare(traces(1, minutes=45)["on the minute"])
    assert found["`band`"].default.late_share == 0 < found["Dataflow, described"].default.late_share
