"""When a tick is due: as often as the settings say, however the daemon's looks fall, and where it is aimed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from threading import Event, Thread

import pytest

from tests.clock import ManualClock
from tests.watermark.builders import START, at, seconds
from tidemark.pipeline.ingest.pace import AtWork, Closings, Pace, least_interval
from tidemark.pipeline.watermark.decision import Decision, Reason
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
        if moment < free_at or (moment - began).total_seconds() < least_interval(seconds(tick)):
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


@pytest.mark.parametrize("work", [0.3, 1.2])
def test_ticks_with_one_look_each_move_later_until_they_are_before_the_look_that_follows(work: float) -> None:
    ticks = ticked(5, 3000, lambda _: work, aim)
    wanted = [START + number * MINUTE + seconds(18.4) for number in range(10, 240)]
    late = sorted(min((tick - moment).total_seconds() for tick in ticks if tick >= moment) for moment in wanted)
    assert late[len(late) // 2] < 0.1
    assert late[len(late) * 9 // 10] <= 0.8
    near = [interval for interval in intervals(ticks) if abs(interval - 5) <= 1]
    assert len(near) >= 0.95 * len(ticks)


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


def test_a_window_is_expected_to_close_as_long_after_its_end_as_the_watermark_was_behind() -> None:
    closings = Closings(Windowing(timedelta(minutes=1), START))

    def decided(moment: float, behind: float | None) -> Decision:
        watermark = None if behind is None else at(moment - behind)
        return Decision(at=at(moment), watermark=watermark, reason=Reason.ADVANCED)

    assert closings.expected(decided(0, None)) is None
    assert closings.expected(decided(70, 20)) == at(60 + 20.3)
    assert closings.expected(decided(81, 18)) == at(120 + 20.3)
    for number in range(20):
        closings.expected(decided(90 + number, 18))
    assert closings.expected(decided(200, 60)) == at(180 + 18.3)  # one that was slow is not what is usual


def test_a_tick_waits_for_one_at_work_but_not_for_long() -> None:
    at_work, begun, go_on, waited = AtWork(), Event(), Event(), Event()

    def work() -> None:
        with at_work.working():
            begun.set()
            go_on.wait(20)

    def wait() -> None:
        at_work.wait(timedelta(seconds=20))
        waited.set()

    at_work.wait(timedelta(hours=1))  # nothing is at work
    worker = Thread(target=work)
    worker.start()
    assert begun.wait(20)
    at_work.wait(timedelta(milliseconds=1))  # it is at work for longer than that
    waiter = Thread(target=wait)
    waiter.start()
    assert not waited.is_set()
    go_on.set()
    assert waited.wait(20)
    worker.join()
    waiter.join()
