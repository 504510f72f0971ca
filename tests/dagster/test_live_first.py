"""Live windows first: when backlog has its turn beside them, and when its run makes way."""

from datetime import datetime, timedelta

import pytest

from tests.watermark.builders import START, at, seconds
from tidemark.assets.live_first import (
    AIM_SECONDS,
    FIRST_PART,
    LONGEST_SECONDS,
    Front,
    Parts,
    backlog_goes_first,
    backlog_may_begin,
)
from tidemark.assets.turns import Attempt
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(seconds(60), START)


def front(watermark: float, now: float | None = None) -> Front:
    return Front(WINDOWING, at(watermark), at(watermark + 18 if now is None else now))


def runs(*ran: tuple[float, float], is_backlog: bool = False) -> list[Attempt]:
    """Runs from one second to another."""
    return [Attempt(Spans(), False, at(began), at(ended), is_backlog) for began, ended in ran]


def number_of(moment: datetime) -> int:
    return WINDOWING.number_of(moment)


def test_live_windows_end_within_ten_minutes_of_the_watermark() -> None:
    assert (front(1205).first_live, front(1205).first_open) == (number_of(at(605)), number_of(at(1200)))
    day = Front(Windowing(timedelta(days=1), START), at(0), at(1))
    assert day.first_live == day.first_open - 1, "the newest closed window, however long"


def test_nothing_is_live_while_the_watermark_is_far_behind() -> None:
    behind = front(0, 3601)
    assert (behind.first_live, behind.closes_at) == (behind.first_open, None)


def test_the_next_window_closes_when_the_watermark_has_gone_on_as_the_clock_does() -> None:
    assert front(1205, 1223).closes_at == at(1223 + 55)


def test_backlog_begins_while_there_is_time_before_the_next_window_closes() -> None:
    assert backlog_may_begin([], front(1205))
    recent = runs((1200, 1210), is_backlog=True)
    assert backlog_may_begin(recent, front(1205))
    assert not backlog_may_begin(recent, front(1250))


def test_backlog_that_has_waited_for_long_begins_all_the_same() -> None:
    assert backlog_may_begin(runs((1000, 1010), is_backlog=True), front(1250))
    assert backlog_may_begin(runs((1255, 1260)), front(1250))


def test_backlog_gets_its_share_however_busy_live_windows_keep_the_runs() -> None:
    busy = runs((200, 250), (130, 190), (60, 120))
    assert backlog_goes_first(busy, at(260))
    assert not backlog_goes_first(busy, at(500)), "that was long ago"
    assert not backlog_goes_first(runs((200, 208), (140, 148)), at(210)), "there are gaps for it"
    assert not backlog_goes_first(busy + runs((0, 58), is_backlog=True), at(260)), "it has had its share"


@pytest.mark.parametrize("seconds_per_window", [0.01, 0.5, 20])
def test_parts_grow_until_each_takes_as_long_as_it_should(seconds_per_window: float) -> None:
    parts = Parts(0.0, 0)
    sizes = []
    for _ in range(6):
        sizes.append(parts.size())
        parts.took(sizes[-1], sizes[-1] * seconds_per_window)
    assert sizes[0] == FIRST_PART
    assert sizes[-1] * seconds_per_window == pytest.approx(max(AIM_SECONDS, seconds_per_window), rel=0.1)


def test_a_run_computes_its_first_part_whatever_the_time() -> None:
    assert not Parts(0.0, front(1259).first_open).ends(48, 1e9, front(1259))


def test_a_run_ends_before_the_next_window_closes_and_after_one_has_closed() -> None:
    parts = Parts(0.0, front(1205).first_open)
    parts.took(48, 8.0)
    assert not parts.ends(48, 10.0, front(1205))
    assert not parts.ends(48, 10.0, front(1248))
    assert parts.ends(48, 10.0, front(1250)), "eight seconds, and three to end"
    assert parts.ends(48, 10.0, front(1261)), "one has closed"
    assert not parts.ends(48, 10.0, front(1261, 9000)), "after an outage nothing is live"


def test_a_run_ends_after_a_minute() -> None:
    parts = Parts(100.0, 0)
    parts.took(48, 8.0)
    behind = front(0, 7200)
    assert not parts.ends(48, 100 + LONGEST_SECONDS - 8, behind)
    assert parts.ends(48, 100 + LONGEST_SECONDS - 7, behind)
