"""The pace of a sensor: its evaluation begins before the tick is due, and waits for that moment.

Dagster's daemon looks every 5 s which sensors are to be evaluated, and compares with the start of the last evaluation.
So an evaluation may begin up to 5 s before the tick that it serves.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from threading import Event

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

LOOK = timedelta(seconds=5)
"""The interval at which Dagster's daemon looks (`MIN_INTERVAL_LOOP_TIME`)."""

LONGEST_WAIT = timedelta(seconds=15)
"""The longest wait of an evaluation. Dagster gives it 60 s, of which a tick may pull for 40 s."""

STEP = timedelta(seconds=0.8)
"""The most by which one interval differs from the setting, to move the ticks to where they are aimed at."""

AIMED = timedelta(seconds=10)
"""The longest tick that is aimed: a longer one would begin too long before it is due."""

DECISIONS = 20
"""The newest decisions that tell how far the watermark is behind."""

USUAL = 0.8
"""The share of these decisions at which the watermark was no further behind."""

MARGIN = timedelta(seconds=0.3)
"""A tick is aimed at so long after the expected moment: a moment too early costs a whole tick."""


def least_interval(tick: timedelta) -> int:
    """The `minimum_interval_seconds` of a sensor with a pace: its evaluation begins as soon as the daemon looks after
    the last one. For a longer tick that would be too long before it is due: the last look before it is taken."""
    return 1 if tick <= AIMED else last_look(tick)


def last_look(tick: timedelta) -> int:
    """The `minimum_interval_seconds` with which the daemon's last look before a tick begins the evaluation."""
    return max(1, int((tick - LOOK).total_seconds()) + 1)


class Pace:
    """The moments at which a sensor ticks: `tick` apart, the first at once.

    A tick that is late keeps the others where they are, unless it is late by more than half a tick, or, where it is
    short, by more than STEP. Assumption: one thread at a time waits; others may read `next_at`.
    """

    def __init__(self, tick: timedelta, clock: Clock) -> None:
        self._tick = tick
        self._clock = clock
        self._last: datetime | None = None
        self._aim: datetime | None = None

    @property
    def next_at(self) -> datetime | None:
        """The moment at which the next tick is due; None before the first."""
        if self._last is None:
            return None
        due = self._last + self._tick
        if self._aim is None or self._tick > AIMED:
            return due
        off = (self._aim - due) % self._tick  # how much later the ticks should be
        if off > self._tick - self._slack:
            off -= self._tick
        return due + max(-STEP, min(STEP, off))

    def aim(self, moment: datetime | None) -> None:
        """Have one of the coming ticks fall on that moment, as far as STEP an interval gets there. None aims at
        nothing."""
        self._aim = moment

    def wait(self) -> None:
        """Wait until the next tick is due."""
        due, now = self.next_at, self._clock.now()
        if due is None or due - now > LONGEST_WAIT:  # the first, or a clock that was put back
            self._last = now
            return
        if now < due:
            self._clock.sleep((due - now).total_seconds())
        self._last = due if now - due <= self._slack else now

    @property
    def _slack(self) -> timedelta:
        """By how much ticks may move earlier, or one be late and keep the others. Short ticks have one look each at
        most: one that should be earlier than its look is never begun in time, so they move later, until they are before
        the next look."""
        return STEP if self._tick <= LOOK else self._tick / 2


class AtWork:
    """Tells another thread whether a tick is at work, so that it can wait for the end."""

    def __init__(self) -> None:
        self._rests = Event()
        self._rests.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """The tick is at work while the block runs."""
        self._rests.clear()
        try:
            yield
        finally:
            self._rests.set()

    def wait(self, at_most: timedelta) -> None:
        """Return once it is not at work, or after so long."""
        self._rests.wait(at_most.total_seconds())


class Closings:
    """Expects when the watermark passes the next window's end, from how far behind it was at the last decisions."""

    def __init__(self, windowing: Windowing) -> None:
        self._windowing = windowing
        self._lags: deque[float] = deque(maxlen=DECISIONS)

    def expected(self, decision: Decision) -> datetime | None:
        """The moment for which a tick is best due; None without a watermark."""
        if decision.watermark is None or decision.lag is None:
            return None
        self._lags.append(decision.lag.total_seconds())
        behind = timedelta(seconds=quantile(list(self._lags), USUAL))
        return self._windowing.containing(decision.watermark).end + behind + MARGIN
