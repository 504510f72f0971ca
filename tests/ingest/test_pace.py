"""When a tick is due: as often as the settings say, however the daemon's looks fall, and where it is aimed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.clock import ManualClock
from tests.watermark.builders import START, at, seconds
from tidemark.pipeline.ingest.pace import MARGIN, Closings, Pace, least_interval
from tidemark.pipeline.windows import Windowing

LOOK = 5.02
"""What the daemon's loop takes: its own work comes on top of its 5 s."""


def ticked(
    tick: float, looks: int, work: Callable[[int], float], aim: Callable[[datetime], datetime] | None = None
) -> list[datetime]:
    """When ticks begin, where Dagster's daemon looks so often: it starts no evaluation of a sensor while one is under
    way, nor sooner after the last one's start than the sensor says."""
    clock = ManualClock(at(0))
    pace, began, free_at, found = Pace(seconds(tick), clock), at(-100), at(0), list[datetime]()
    for look in range(looks):
        moment = at(look * LOOK)
        if moment < free_at or (moment - began).total_seconds() < least_interval(seconds(tick), waits=True):
            continue
        clock.advance(moment - clock.now())
        began = moment
        if aim is not None:
            pace.aim(aim(clock.now()))
        pace.wait()
        found.append(clock.now())
        clock.advance(seconds(work(len(found))))
        free_at = clock.now()
    return found


def intervals(ticks: list[datetime]) -> list[float]:
    return [(later - earlier).total_seconds() for earlier, later in pairwise(ticks)]


@pytest.mark.parametrize("tick", [5, 7, 10, 15, 30])
@pytest.mark.parametrize("work", [0.3, 1.6])
def test_nearly_all_intervals_are_as_long_as_the_setting(tick: float, work: float) -> None:
    found = intervals(ticked(tick, 1000, lambda _: work))
    near = [interval for interval in found if abs(interval - tick) <= 1]
    assert len(near) >= 0.95 * len(found)
    assert sum(found) / len(found) == pytest.approx(tick, rel=0.02)


MINUTE = timedelta(minutes=1)


def aim(now: datetime) -> datetime:
    """The next moment that is so far within a minute."""
    return now - (now - START - seconds(18.4)) % MINUTE + MINUTE


@pytest.mark.parametrize("tick", [7, 10])
def test_ticks_move_to_where_they_are_aimed_by_less_than_a_second_an_interval(tick: float) -> None:
    ticks = ticked(tick, 300, lambda _: 0.5, aim)
    assert all(abs(interval - tick) <= 0.81 for interval in intervals(ticks)[1:])
    wanted = [START + number * MINUTE + seconds(18.4) for number in range(5, 20)]
    for moment in wanted:
        assert min(abs((moment - other).total_seconds()) for other in ticks) < 0.1


def test_a_clock_that_is_put_back_does_not_stop_the_ticks() -> None:
    clock = ManualClock(at(1000))
    pace = Pace(seconds(10), clock)
    pace.wait()
    clock.advance(seconds(-900))
    pace.wait()
    assert clock.now() == at(100)


def test_a_tick_is_aimed_so_that_the_watermark_of_this_tick_passes_a_window() -> None:
    closings, lag = Closings(Windowing(MINUTE, START)), seconds(18.6)
    aims = [closings.expected(at(began) - lag, at(began)) for began in (30, 40, 50)]
    assert aims == [START + MINUTE + lag + MARGIN] * 3
    assert closings.expected(None, at(60)) is None
