"""Spaces a sensor's ticks evenly: each evaluation begins a little early, then waits until its tick is due.

Every 5 s, Dagster's daemon starts the sensors that are due, counting from the start of their last evaluation. So an
evaluation may begin up to 5 s before its tick.
"""

from collections import deque
from datetime import datetime, timedelta

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

LOOK = timedelta(seconds=5)
"""The interval at which Dagster's daemon checks its sensors (`MIN_INTERVAL_LOOP_TIME`)."""

LONGEST_WAIT = timedelta(seconds=15)
"""The longest wait of an evaluation. Dagster allows an evaluation 60 s, and a tick may spend 40 s of them pulling."""

STEP = timedelta(seconds=0.8)
"""The largest shift of one interval between ticks, when ticks move towards the moment aimed at."""

AIMED = timedelta(seconds=10)
"""The longest tick that is aimed. For a longer tick, the evaluation begins too long before the tick is due."""

DECISIONS = 20
"""Number of newest decisions from which the watermark's lag is estimated."""

USUAL = 0.8
"""The next lag is predicted as this quantile of the lags at the last decisions."""

MARGIN = timedelta(seconds=0.3)
"""A tick is aimed this long after the expected moment. If a tick comes a moment too early, the window waits for the
next."""


def least_interval(tick: timedelta) -> int:
    """Return the `minimum_interval_seconds` of a sensor with a pace. For a short tick, the evaluation begins at the
    daemon's next check. For a longer tick that is too early: the evaluation begins at the last check before the
    tick."""
    return 1 if tick <= AIMED else last_look(tick)


def last_look(tick: timedelta) -> int:
    """Return the `minimum_interval_seconds` that starts the evaluation at the daemon's last check before a tick."""
    return max(1, int((tick - LOOK).total_seconds()) + 1)


class Pace:
    """The moments at which a sensor ticks: `tick` apart, the first at once.

    A late tick does not delay the next ones, unless it is late by more than half an interval (for short ticks: by more
    than STEP). Assumption: one thread at a time waits; others may read `next_at`.
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
        """Shift the coming ticks, by at most STEP each, until one of them falls on `moment`. None clears the aim."""
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
        """The most that ticks may move earlier, and the most that a tick may be late without delaying the next ones.
        Between two short ticks the daemon checks only once, and a tick that is due before the check begins late. So
        short ticks move only later, until they are due just after a check."""
        return STEP if self._tick <= LOOK else self._tick / 2


class Closings:
    """Predicts when the watermark passes the next window's end, from the watermark's lag at the last decisions."""

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
