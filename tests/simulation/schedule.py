"""Processes on one thread: each runs until it pauses, and time passes in between.

A process is a greenlet, so that the product's own functions can be stopped at any call that they make to the
outside. All that ever runs is one of them; which comes next follows from the seed.
"""

import heapq
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

from tests.clock import ManualClock
from tests.ingest.fakes import Crash
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import TidemarkError

Result = TypeVar("Result")


class Schedule:
    """What happens when. Of what happens at one moment, the order is drawn from the random numbers."""

    def __init__(self, clock: ManualClock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._main = getcurrent()
        self._waiting: list[tuple[int, float, int, Callable[[], object]]] = []
        self._numbers = 0
        self.now_us = to_us(clock.now())

    def at(self, moment_us: int, action: Callable[[], object]) -> None:
        """Do it at that moment, or now if that is past."""
        self._numbers += 1
        heapq.heappush(self._waiting, (max(moment_us, self.now_us), self._rng.random(), self._numbers, action))

    def start(self, body: Callable[[], None]) -> None:
        """A process that begins now. What it raises ends the run."""
        self.at(self.now_us, greenlet(body, self._main).switch)

    def beside(self, body: Callable[[], Result]) -> "Beside[Result]":
        """A process that begins now, and whose end the caller can wait for."""
        started = Beside(self, body)
        self.start(started.run)
        return started

    def wait_for(self, other: "Beside[Result]") -> None:
        """Let others run until that process has ended."""
        current = getcurrent()
        if current is self._main:
            while not other.has_ended:
                self._next()
            return
        while not other.has_ended:
            other.waiting.append(current.switch)
            self._main.switch()

    def pause(self, duration_us: int) -> None:
        """Let the calling process wait, and others run meanwhile. Called by nobody's process, time just passes."""
        current = getcurrent()
        if current is self._main:
            self._pass(self.now_us + duration_us)
            return
        self.at(self.now_us + duration_us, current.switch)
        self._main.switch()

    def run(self, until_us: int | None = None) -> None:
        """Let everything happen that happens until then; without a moment, until nothing is left."""
        while self._waiting and (until_us is None or self._waiting[0][0] <= until_us):
            self._next()
        if until_us is not None:
            self._pass(until_us)

    def _next(self) -> None:
        when_us, _, _, action = heapq.heappop(self._waiting)
        self._pass(when_us)
        action()

    def _pass(self, moment_us: int) -> None:
        if moment_us > self.now_us:
            self._clock.advance(timedelta(microseconds=moment_us - self.now_us))
            self.now_us = moment_us


class Beside(Generic[Result]):
    """A process that another waits for. What ends it, a crash or one of the product's errors, is raised there; what
    else it raises ends the run."""

    def __init__(self, schedule: Schedule, body: Callable[[], Result]) -> None:
        self.has_ended = False
        self.waiting: list[Callable[[], object]] = []
        self._schedule = schedule
        self._body = body
        self._result: list[Result] = []
        self._problem: BaseException | None = None

    def run(self) -> None:
        """The process itself."""
        try:
            self._result.append(self._body())
        except (Crash, TidemarkError) as problem:
            self._problem = problem
        self.has_ended = True
        for wake in self.waiting:
            self._schedule.at(self._schedule.now_us, wake)

    def wait(self) -> None:
        """Let others run until this has ended."""
        self._schedule.wait_for(self)

    def result(self) -> Result:
        """What the process came to, once it has ended."""
        self.wait()
        if self._problem is not None:
            raise self._problem
        return self._result[0]
