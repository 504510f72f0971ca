"""Which runs are asked for, and how many, until everything that is due is computed: a model of sensor and runs; and
whose turn it is: a window that keeps failing is soon alone in its rest, and every other one gets its turn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from threading import Event
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watermark.builders import START, at, bounded, seconds
from tidemark.assets.scheduler import requests, turns
from tidemark.assets.scheduler.requests import Request, WindowChooser, next_request
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.windows import DAY, Spans, Window, Windowing, due

CONTEXT = dg.build_sensor_context()
REACH = 2
TICK, A_RUN = timedelta(seconds=10), timedelta(seconds=12)


@dataclass
class World:
    """A lake of one index; a watermark that follows the clock by 18 s; runs that compute all they were asked for."""

    windowing: Windowing
    now: datetime
    held: Spans = field(default_factory=Spans)
    reached: Spans = field(default_factory=Spans)
    computed: Spans = field(default_factory=Spans)
    attempts: list[turns.Attempt] = field(default_factory=list)
    most: int = 288
    at_once: int = 1
    behind: timedelta = timedelta(seconds=18)
    kept: Kept = field(default_factory=Kept)
    working: list[tuple[datetime, Request]] = field(default_factory=list)

    @property
    def watermark(self) -> datetime:
        return self.now - self.behind

    def hold(self, number: int, reach: int = 2) -> None:
        self.held.add(range(number, number + 1))
        self.reached.add(range(number, number + 1 + reach))

    def due(self, watermark: datetime | None = None) -> list[range]:
        first, live = self.windowing.number_of(self.windowing.first), max(1, DAY // self.windowing.length)
        closed = range(first, self.windowing.number_of(watermark or self.watermark))
        return list(due(self.held, self.reached, self.computed, closed, live))

    def ask(self, stale: Sequence[Window] = (), counted_at: datetime | None = None) -> Request:
        """Request a run, given the stale windows, which are counted just now unless it says otherwise."""
        numbers = (self.windowing.number_of(window.start) for window in stale)
        memory = self.kept.get(requests.OLDER, requests.OlderWindows)
        memory.counted = Spans(*(range(number, number + 1) for number in numbers)), counted_at or self.now
        length = self.windowing.length
        windows = SimpleNamespace(runs_at_once=self.at_once, length=length, lookback=REACH * length)
        lake: Any = SimpleNamespace(settings=SimpleNamespace(windowing=self.windowing, windows=windows), kept=self.kept)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(requests, "report_dead", lambda *_: self.working)
            patched.setattr(requests, "attempt_of", lambda one, *_: self.attempt(one[1], self.now))
            patched.setattr(requests, "is_held", lambda *_: False)
            patched.setattr(requests, "doing", lambda _, does: f"run run-0 {does}")
            patched.setattr(requests, "ended_attempts", lambda *_: self.attempts)
            patched.setattr(requests, "due_now", lambda _, watermark, __: Spans(*self.due(watermark)))
            runs: Any = SimpleNamespace(settings=lake.settings)
            return next_request(runs, lake, self.watermark, self.now, self.most)

    def attempt(self, request: Request, began: datetime, *, failed: bool = False) -> turns.Attempt:
        tried = Spans(*(range(number, number + 1) for number in self.numbers(request)))
        return turns.Attempt(tried, failed, began, self.now, request.is_backlog)

    def numbers(self, request: Request) -> list[int]:
        return [self.windowing.number_of(window.start) for window in request.windows]

    def go_on(self, by: timedelta) -> None:
        """Time passes, and runs end that have had theirs."""
        self.now += by
        for ends, request in [one for one in self.working if one[0] <= self.now]:
            self.working.remove((ends, request))
            for number in self.numbers(request):
                self.computed.add(range(number, number + 1))

    def run(self, request: Request, took: timedelta = A_RUN, *, failed: bool = False) -> None:
        began, self.now = self.now, self.now + took
        self.attempts.insert(0, self.attempt(request, began, failed=failed))
        for number in () if failed else self.numbers(request):
            self.computed.add(range(number, number + 1))


def until_quiet(world: World, ticks: int) -> list[Request]:
    """The requests until nothing is due."""
    asked = []
    for _ in range(ticks):
        request = world.ask()
        if request.windows:
            asked.append(request)
            world.run(request)
        elif not world.due():
            return asked
        world.now += TICK
    raise AssertionError(f"still due: {world.due()[:5]}")


def test_324_messages_one_a_day_are_a_handful_of_runs_beside_the_live_ones() -> None:
    world = World(Windowing(timedelta(minutes=5), START - 400 * DAY), START)
    newest = world.windowing.number_of(START) - 1
    for number in range(324):
        world.hold(newest - 288 * number)
    asked = until_quiet(world, 200)
    older = [request for request in asked if request.is_backlog]
    assert not asked[0].is_backlog
    assert len(older) <= 6
    assert sum(len(request.windows) for request in asked) < 324 * 3 + 2 * 288


def test_live_windows_go_before_older_ones_and_stale_ones() -> None:
    world = World(Windowing(timedelta(minutes=1), START - 400 * DAY), START + seconds(20))
    newest = world.windowing.number_of(world.watermark) - 1
    world.hold(newest)
    world.hold(newest - 5000)
    live = world.ask()
    assert (live.is_backlog, [world.windowing.number_of(window.start) for window in live.windows]) == (False, [newest])
    stale = [world.windowing.numbered(newest - 9000)]
    assert world.ask(stale).windows == live.windows
    world.run(live)
    assert world.ask().is_backlog
    again = world.ask(stale)
    assert (again.is_backlog, again.windows) == (True, stale)


def test_stale_and_due_windows_take_turns_and_no_stale_one_is_computed_twice_by_one_count() -> None:
    world = World(Windowing(timedelta(minutes=1), START - 400 * DAY), START + seconds(20), most=4)
    newest = world.windowing.number_of(world.watermark) - 1
    for number in range(newest - 9000, newest - 8990):
        world.hold(number, reach=1)
    wanted, counted_at = [world.windowing.numbered(newest - number) for number in range(2, 12)], world.now
    turns_taken, computed = list[bool](), list[Window]()
    while (request := world.ask(wanted, counted_at)).windows:
        turns_taken.append(request.windows[0] in wanted)
        computed += request.windows
        world.run(request, seconds(1))
    assert turns_taken == [True, False] * 3
    assert sorted(window.start for window in computed if window in wanted) == sorted(window.start for window in wanted)
    assert len({window.start for window in computed}) == len(computed) == 21
    assert len(world.ask(wanted).windows) == 4, "a later count finds them stale again"
    world.now -= seconds(60)
    assert len(world.ask(wanted).windows) == 4, "a run that ended in the future ended before the clock was set back"
    world.attempts.clear()
    tried = world.ask(wanted, counted_at)
    world.run(tried, failed=True)
    world.now += seconds(20)
    assert world.ask(wanted, counted_at).windows == tried.windows, "a failed run has computed nothing"


def test_the_wait_of_older_windows_ends_once_none_is_left() -> None:
    world = World(Windowing(timedelta(minutes=1), START - 400 * DAY), START + seconds(20))
    newest = world.windowing.number_of(world.watermark) - 1
    stale = [world.windowing.numbered(newest - 9000)]
    world.hold(newest)
    live = world.ask(stale)
    assert not live.is_backlog
    world.run(live, seconds(1))
    assert not world.ask().windows
    world.now += timedelta(minutes=5)
    world.hold(world.windowing.number_of(world.watermark) - 1, reach=1)
    assert not world.ask(stale).is_backlog, "these have not waited yet"
    world.now += timedelta(minutes=1)
    assert world.ask(stale).is_backlog


def test_a_window_of_the_sources_future_is_left_until_the_clock_has_passed_it() -> None:
    world = World(Windowing(timedelta(minutes=1), START - DAY), START, behind=seconds(-180))
    open_one = world.windowing.number_of(START)
    world.hold(open_one - 1, reach=3)
    assert world.numbers(world.ask()) == [open_one - 1]
    world.now += timedelta(minutes=1)
    assert world.numbers(world.ask()) == [open_one - 1, open_one]


def test_older_windows_get_runs_however_busy_live_ones_keep_them() -> None:
    world = World(Windowing(timedelta(minutes=1), START - DAY), START)
    newest = world.windowing.number_of(world.watermark) - 1
    for number in range(newest - 1000, newest + 100):
        world.hold(number)
    world.ask()
    world.now -= timedelta(minutes=30)  # the clock is set back
    older = []
    for _ in range(12):
        request = world.ask()
        older.append(request.is_backlog)
        world.run(request, seconds(10 if request.is_backlog else 55))
    assert older == [True, False, False] * 4


def test_failures_of_older_windows_hold_back_no_live_ones() -> None:
    world = World(Windowing(timedelta(minutes=1), START - 2 * DAY), START + seconds(20))
    newest = world.windowing.number_of(world.watermark) - 1
    world.hold(newest - 2000)
    for _ in range(4):
        world.run(Request([world.windowing.numbered(newest - 2000)], "", is_backlog=True), seconds(3), failed=True)
    assert "consecutive failed runs over older windows: 4" in world.ask().sentence
    world.hold(newest)
    live = world.ask()
    assert (live.is_backlog, newest in world.numbers(live)) == (False, True)
    for _ in range(4):
        world.run(live, seconds(3), failed=True)
    world.attempts = [one for one in world.attempts if not one.is_backlog]
    assert world.ask().is_backlog, "nor the other way round"


def test_older_windows_wait_for_a_live_one_that_is_about_to_close_unless_the_watermark_stays() -> None:
    world = World(Windowing(timedelta(minutes=1), START - 2 * DAY), START + seconds(8), behind=seconds(18))
    world.hold(world.windowing.number_of(world.watermark) - 2000)
    for _ in range(6):
        assert world.ask().sentence == "older windows wait: a live window is due, or about to close"
        world.now, world.behind = world.now + TICK, world.behind + TICK
    assert world.ask().is_backlog


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.sets(st.integers(0, 400), min_size=1, max_size=60),
    at_once=st.integers(2, 4),
    lengths=st.lists(st.integers(5, 90), min_size=1, max_size=8),
)
def test_runs_share_no_input_and_leave_room_for_live_ones(numbers: set[int], at_once: int, lengths: list[int]) -> None:
    windowing = Windowing(timedelta(minutes=1), START)
    world = World(windowing, START + timedelta(minutes=380), most=20, at_once=at_once)
    first = windowing.number_of(START)
    for number in numbers:
        world.hold(first + number)
    wanted = {first + number for number in numbers if number < 379}
    asked = 0
    for _ in range(400):
        request = world.ask()
        if request.windows:
            mine = {near for number in world.numbers(request) for near in range(number - REACH, number + REACH + 1)}
            theirs = {number for _, other in world.working for number in world.numbers(other)}
            assert not mine & theirs, "two runs would read the same heartbeats"
            world.working.append((world.now + seconds(lengths[asked % len(lengths)]), request))
            asked += 1
        assert len(world.working) <= at_once
        assert sum(other.is_backlog for _, other in world.working) <= at_once - 1
        world.go_on(TICK)
        if all(number in world.computed for number in wanted):
            break
    assert [number for number in wanted if number not in world.computed] == []


def test_a_choice_that_fails_or_takes_long_fails_no_tick_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "CHOOSE_WITHIN_SECONDS", 0.01)
    chooser, go_on, some = WindowChooser(), Event(), Request([Windowing(seconds(60), START).containing(START)], "a run")

    def slow() -> Request:
        go_on.wait(60)
        return some

    def unanswered() -> Request:
        raise TimeoutError("the storage does not answer")

    def slow_and_unanswered() -> Request:
        go_on.wait(60)
        return unanswered()

    assert "choosing takes longer" in chooser.request(slow, CONTEXT).sentence
    assert "still under way" in chooser.request(unanswered, CONTEXT).sentence
    go_on.set()
    while "still under way" in (request := chooser.request(unanswered, CONTEXT)).sentence:
        pass
    assert request is some
    go_on.clear()
    assert "choosing takes longer" in chooser.request(slow_and_unanswered, CONTEXT).sentence
    monkeypatch.setattr(requests, "CHOOSE_WITHIN_SECONDS", 60)
    go_on.set()
    while "still under way" in (request := chooser.request(lambda: some, CONTEXT)).sentence:
        pass
    assert request is some
    assert chooser.request(unanswered, CONTEXT).sentence.endswith("tries again: the storage does not answer")
    assert chooser.request(lambda: some, CONTEXT) is some


def test_that_nothing_is_due_is_known_for_a_minute_and_while_no_further_window_closes() -> None:
    done = requests.NothingDue()
    done.note(5, at(0), is_due=False)
    assert [done.holds(5, at(59)), done.holds(5, at(61)), done.holds(6, at(1))] == [True, False, False]
    done.note(5, at(0), is_due=True)
    assert not done.holds(5, at(1))


WINDOWING = Windowing(seconds(60), START)


def attempt(windows: range, ended_at: float, *, failed: bool = True) -> turns.Attempt:
    return turns.Attempt(Spans(windows), failed, at(ended_at), at(ended_at))


def chosen(wanted: Iterable[range], attempts: list[turns.Attempt], now: float, most: int = 288) -> list[int]:
    return turns.take_turn(wanted, attempts, at(now), most)[0]


def test_a_window_that_failed_rests_and_is_named_and_the_others_go_on() -> None:
    failing = WINDOWING.number_of(START)
    failed = [attempt(range(failing, failing + 1), ended) for ended in (100, 50, 0)]
    others, resting = turns.take_turn([range(failing, failing + 3)], failed, at(101), 288)
    assert others == [failing + 2, failing + 1]
    said = "windows on hold after failures: 1; 2026-11-21T05-20Z is tried again first, at 2026-11-21T05:22:40Z"
    assert turns.resting_sentence(resting, WINDOWING) == said
    assert chosen([range(failing, failing + 1)], failed, 160) == [failing]
    assert chosen([range(failing, failing + 1)], failed, -3600) == [failing]  # the clock was set back
    assert len(chosen([range(48)], [attempt(range(48), 0)] * 2, 60, most=5)) == 5, "12 are the fourth part"


@pytest.mark.parametrize(
    ("wanted", "history", "now", "turn"),
    [
        ([range(5, 8), range(3)], [], 0, [7, 6, 5, 2, 1, 0]),
        ([range(1000)], [], 0, list(range(999, 711, -1))),
        ([range(70)], [attempt(range(64), 0)], 100, list(range(69, -1, -1))),
        ([range(1)], [attempt(range(10), 50, failed=False), *[attempt(range(1), 49)] * 5], 51, [0]),
        *(
            ([range(1)], [attempt(range(1), 0)] * failures, rest + over, [0] * (over + 1))
            for failures, rest in [(1, 15), (2, 30), (3, 60), (6, 480), (7, 600), (90, 600)]
            for over in (-1, 0)
        ),
    ],
)
def test_turns_go_to_the_newest(wanted: list[range], history: list[turns.Attempt], now: float, turn: list[int]) -> None:
    assert chosen(wanted, history, now) == turn


@bounded
@given(st.sets(st.integers(0, 59), max_size=3), st.integers(1, 60))
def test_all_but_the_windows_that_always_fail_are_computed_before_long(bad: set[int], max_windows: int) -> None:
    """A model of the sensor: every ten seconds one run, which fails if any of its windows does."""
    left, attempts, now = set(range(60)), list[turns.Attempt](), 0.0
    while left - bad:
        now += 10
        assert now < 4 * turns.LONGEST_REST.total_seconds() + 10 * 60
        wanted = Spans(*(range(number, number + 1) for number in left)).within(range(60))
        turn = chosen(wanted, attempts, now, max_windows)
        if turn:
            tried = Spans(*(range(number, number + 1) for number in turn))
            failed = bool(bad & set(turn))
            attempts.insert(0, turns.Attempt(tried, failed, at(now), at(now)))
            if not failed:
                left -= set(turn)
    assert left <= bad


# Live windows, and the room that they leave


def room(now: float, *ended: turns.Attempt, gap: float) -> int:
    there = turns.Front(0, 1000, seconds(gap))
    return turns.room_for_older(there, 1, [], ended, at(now), waited=seconds(0), live_due=False)[0]


def test_live_windows_end_within_ten_minutes_of_the_watermark_unless_it_is_far_behind() -> None:
    found = turns.Front.of(WINDOWING, at(1205), at(1223))
    assert (found.first_live, found.first_open) == (WINDOWING.number_of(at(605)), WINDOWING.number_of(at(1200)))
    assert found.gap == seconds(55), "the watermark goes on as the clock does"
    day = turns.Front.of(Windowing(timedelta(days=1), START), at(0), at(1))
    assert day.first_live == day.first_open - 1, "the newest closed window, however long"
    behind = turns.Front.of(WINDOWING, at(0), at(3601))
    assert (behind.first_live, behind.gap) == (behind.first_open, turns.LONGEST)


def sizes_of_runs(start: float, each: float, gap: float) -> list[int]:
    """The windows of runs that take so long to start and for each window, one run after another."""
    ended, now, sizes = list[turns.Attempt](), 0.0, [room(0, gap=gap)]
    for _ in range(10):
        began, now = now, now + start + each * sizes[-1]
        ended.insert(0, turns.Attempt(Spans(range(sizes[-1])), False, at(began), at(now), is_backlog=True))
        sizes.append(room(now, *ended, gap=gap))
    return sizes


@pytest.mark.parametrize("seconds_per_window", [0.01, 0.5, 20])
@pytest.mark.parametrize("gap", [20, 60, 86_400])
def test_a_run_over_older_windows_grows_to_the_gap_between_live_ones(seconds_per_window: float, gap: float) -> None:
    sizes = sizes_of_runs(0, seconds_per_window, gap)
    assert sizes[0] == turns.FIRST
    assert all(later <= 4 * max(earlier, turns.FIRST) for earlier, later in pairwise(sizes))
    time = min(gap, 60) - 5
    assert sizes[-1] * max(seconds_per_window, 1 / sizes[-1]) <= max(time, seconds_per_window)
    assert sizes[-1] > 100 or sizes[-1] == max(1, int(time / seconds_per_window))


@pytest.mark.parametrize(("start", "gap", "size"), [(30, 30, 200), (8, 60, 940), (4, 15, 120)])
def test_the_start_of_a_run_is_told_from_its_windows(start: float, gap: float, size: int) -> None:
    assert sizes_of_runs(start, 0.05, gap)[-3:] == [size] * 3
