"""The pace of a sensor: an evaluation begins before its tick is due, and waits until then.

Dagster's daemon checks every 5 s which sensors are due, by the start of their last evaluation. So an evaluation may
begin up to 5 s before its tick.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from threading import Event

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

LOOK = timedelta(seconds=5)
"""The interval at which Dagster's daemon checks its sensors (`MIN_INTERVAL_LOOP_TIME`)."""

LONGEST_WAIT = timedelta(seconds=15)
"""The longest wait of an evaluation. Dagster allows an evaluation 60 s, of which a tick may pull for 40 s."""

STEP = timedelta(seconds=0.8)
"""The maximum deviation of one interval from the setting, to move the ticks to the aimed moments."""

AIMED = timedelta(seconds=10)
"""The longest tick that is aimed: the evaluation of a longer one would begin too long before it is due."""

DECISIONS = 20
"""Number of newest decisions from which the watermark's lag is estimated."""

USUAL = 0.8
"""The quantile of the lag over these decisions."""

MARGIN = timedelta(seconds=0.3)
"""A tick is aimed this long after the expected moment: a moment too early costs a whole tick."""


def least_interval(tick: timedelta) -> int:
    """Return the `minimum_interval_seconds` of a sensor with a pace. A short tick's evaluation begins at the daemon's
    next check after the last evaluation. For a longer tick that would be too early: it begins at the last check before
    the tick."""
    return 1 if tick <= AIMED else last_look(tick)


def last_look(tick: timedelta) -> int:
    """Return the `minimum_interval_seconds` that starts the evaluation at the daemon's last check before a tick."""
    return max(1, int((tick - LOOK).total_seconds()) + 1)


class Pace:
    """The moments at which a sensor ticks: `tick` apart, the first at once.

    A late tick does not move the others, unless it is late by more than half a tick, or for short ticks by more than
    STEP. Assumption: one thread at a time waits; others may read `next_at`.
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
        """Aim a coming tick at that moment, moving each interval by at most STEP. None clears the aim."""
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
        """The maximum by which ticks may move earlier, or a tick may be late without moving the others. Short ticks get
        one check each: a tick due before its check cannot begin in time. So they move only later, until they fall
        before the next check."""
        return STEP if self._tick <= LOOK else self._tick / 2


class AtWork:
    """Shows whether a tick is running, so that another thread can wait for its end."""

    def __init__(self) -> None:
        self._rests = Event()
        self._rests.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the tick as running during the block."""
        self._rests.clear()
        try:
            yield
        finally:
            self._rests.set()

    def wait(self, at_most: timedelta) -> None:
        """Wait until no tick is running, or for `at_most`."""
        self._rests.wait(at_most.total_seconds())


class Closings:
    """Predicts when the watermark passes the next window's end, from its lag at the last decisions."""

    def __init__(self, windowing: Windowing) -> None:
        self._windowing = windowing
        self._lags: deque[float] = deque(maxlen=DECISIONS)

    def expected(self, decision: Decision) -> datetime | None:
        """Return the best moment for a tick, or None without a watermark."""
        if decision.watermark is None or decision.lag is None:
            return None
        self._lags.append(decision.lag.total_seconds())
        behind = timedelta(seconds=quantile(list(self._lags), USUAL))
        return self._windowing.containing(decision.watermark).end + behind + MARGIN
