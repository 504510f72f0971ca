"""Spaces the ticks of a sensor evenly. Dagster starts each evaluation of the sensor a little early, and the evaluation
waits until its tick is due.

Reason: Dagster's daemon starts evaluations only when it checks which sensors are due, every 5 s. To be on time, an
evaluation must start at a check before its tick.
"""

from collections import deque
from datetime import datetime, timedelta

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.windows import Windowing

LOOK = timedelta(seconds=5)
"""Interval at which Dagster's daemon checks whether sensors are due (`MIN_INTERVAL_LOOP_TIME`)."""

LONGEST_WAIT = timedelta(seconds=15)
"""Maximum time that an evaluation waits for its tick. Dagster allows an evaluation 60 s, of which a tick may spend 40 s
pulling."""

STEP = timedelta(seconds=0.8)
"""Maximum shift of one tick. Ticks are shifted so that one of them falls on the moment at which the watermark is
expected to pass a window's end."""

AIMED = timedelta(seconds=10)
"""The longest interval at which `Pace.aim` shifts ticks. At longer intervals, an evaluation would wait too long for its
tick."""

DECISIONS = 20
"""Number of recent ticks from which the lag of the watermark is estimated."""

USUAL = 0.8
"""Quantile of the lags of recent ticks that predicts the next lag."""

MARGIN = timedelta(seconds=0.3)
"""Delay of a tick after the moment at which the watermark is expected to pass a window's end. If the tick came too
early, the window would wait for the next tick."""


def least_interval(tick: timedelta, *, waits: bool) -> int:
    """Return the `minimum_interval_seconds` of a sensor. With it, the daemon starts an evaluation at its last check
    before the next tick is due. Exception: if the sensor waits for its tick (see `Pace`), and ticks are up to AIMED
    apart, the daemon starts an evaluation at its first check after the previous evaluation."""
    return 1 if waits and tick <= AIMED else max(1, int((tick - LOOK).total_seconds()) + 1)


class Pace:
    """The moments at which a sensor ticks. They are `tick` apart, and the first is immediate.

    A late tick delays later ones only if it is late by more than half an interval (or STEP, if the interval is at most
    LOOK). Only one thread at a time may wait; other threads may read `next_at`.
    """

    def __init__(self, tick: timedelta, clock: Clock) -> None:
        self._tick = tick
        self._slack = STEP if tick <= LOOK else tick / 2
        """Maximum time that a tick may move earlier, or be late without delaying later ticks.

        It must be small for ticks up to LOOK apart. The daemon starts at most one of them per check, so a tick due just
        before a check is always late. With a small slack, late ticks delay the later ones, until ticks are due just
        after a check.
        """
        self._clock = clock
        self._last: datetime | None = None
        self._aim: datetime | None = None

    @property
    def next_at(self) -> datetime | None:
        """The moment at which the next tick is due; None before the first tick."""
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
        """Shift later ticks, each by at most STEP, until one of them falls on `moment`. None ends the shifting."""
        self._aim = moment

    def wait(self) -> None:
        """Wait until the next tick is due."""
        due, now = self.next_at, self._clock.now()
        if due is None or due - now > LONGEST_WAIT:  # the first tick, or the clock was set back
            self._last = now
            return
        if now < due:
            self._clock.sleep((due - now).total_seconds())
        self._last = due if now - due <= self._slack else now


class Closings:
    """Predicts when a tick should begin so that its decision closes the next window. The prediction uses the
    watermark's lag behind the beginning of recent ticks."""

    def __init__(self, windowing: Windowing) -> None:
        self._windowing = windowing
        self._lags: deque[float] = deque(maxlen=DECISIONS)

    def expected(self, watermark: datetime | None, began: datetime) -> datetime | None:
        """Record the watermark that a tick has decided, and when the tick began. Return when a later tick should begin
        to close the next window. Return None if there is no watermark."""
        if watermark is None:
            return None
        self._lags.append((began - watermark).total_seconds())
        behind = timedelta(seconds=quantile(list(self._lags), USUAL))
        return self._windowing.containing(watermark).end + behind + MARGIN
