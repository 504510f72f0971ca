"""When a demonstration is called right, and what a script reads of it."""

from dataclasses import replace

import pytest

from tidemark.local.demo.summary import Spread, Summary
from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison

RIGHT = Summary(
    published=Published(
        messages=101,
        heartbeats=99,
        duplicates=1,
        broken={"NO_EVENT_TIME": 1, "NO_STREAM_ID": 0},
        first_event_time=None,
        last_event_time=None,
        seconds=60.0,
    ),
    comparison=TruthComparison(
        rows=99,
        expected_rows=99,
        windows=2,
        differences=0,
        by_what={},
        examples=[],
        late=0,
        missed=0,
        landed=100,
        quarantined={"NO_EVENT_TIME": 1},
        quarantine_differences=0,
    ),
    ready=Spread(1.0, 2.0),
    live_ready=None,
    backlog_messages=90,
    landed_after=9.04,
    seconds=60.04,
)


def test_a_spread_has_a_median_and_a_maximum() -> None:
    assert Spread.of([3.04, 1.0, 2.0]) == Spread(2.0, 3.0)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 98},
        {"differences": 1},
        {"missed": 1},
        {"quarantine_differences": 1},
        {"quarantined": {}},
        {"quarantined": {"NO_EVENT_TIME": 1, "IN_THE_FUTURE": 1}},
    ],
    ids=str,
)
def test_anything_else_than_the_truth_is_not_right(wrong: dict[str, object]) -> None:
    comparison = replace(RIGHT.comparison, **wrong)
    assert not replace(RIGHT, comparison=comparison).is_right
