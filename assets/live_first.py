"""Fresh windows first: when older windows get a run, and how long such a run goes on. Pure functions of time.

*Live* windows end close to the watermark, while the watermark is close to the clock. Everything else that is due, and
every stale window, is *backlog*: older windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.assets.turns import Attempt
from tidemark.pipeline.windows import Windowing

LIVE = timedelta(minutes=10)
"""How close to the watermark a live window ends. The newest closed window is live, however long windows are."""

LIVE_LAG = timedelta(hours=1)
"""With a watermark further behind the clock, as after an outage, nothing is live; the newest come first even so."""

SHARE, LOOKED_AT = 0.25, timedelta(minutes=5)
"""The share of the run time that backlog has for certain, looked at over this time, however busy the live windows keep
the runs. What live windows leave is backlog's as well."""

BUSY = 0.5
"""Runs that take less than this share of the time leave gaps, in which backlog has its turns."""

WORTH_WHILE, PATIENCE = timedelta(seconds=15), timedelta(minutes=2)
"""Backlog does not begin if the next window closes sooner than this, unless it has had no run for as long as that."""

AIM_SECONDS, LONGEST_SECONDS = 8.0, 60.0
"""How long a part of a backlog run takes, and all of its parts. A live window waits for one part, at the most."""

FIRST_PART, GROWTH = 48, 4
"""Windows in the first part of a run, before its speed is known, and how much larger the next part may be."""

TO_END_SECONDS = 3.0
"""How long a run takes to end after its last part."""


@dataclass(frozen=True, slots=True)
class Front:
    """Where the watermark was at a moment, not ahead of it, and how event time is cut."""

    windowing: Windowing
    watermark: datetime
    at: datetime

    @property
    def is_live(self) -> bool:
        """Whether the watermark is close to the clock."""
        return self.at - self.watermark <= LIVE_LAG

    @property
    def first_open(self) -> int:
        """The first window that is not closed."""
        return self.windowing.number_of(self.watermark)

    @property
    def first_live(self) -> int:
        """The first live window; the first open one if none is live."""
        if not self.is_live:
            return self.first_open
        return min(self.windowing.number_of(self.watermark - LIVE), self.first_open - 1)

    @property
    def closes_at(self) -> datetime | None:
        """When the next live window closes, if the watermark goes on as the clock does; None if none is live."""
        left: timedelta = self.windowing.numbered(self.first_open).end - self.watermark
        return self.at + left if self.is_live else None


def backlog_goes_first(attempts: Sequence[Attempt], now: datetime) -> bool:
    """Whether live windows have kept the runs so busy that backlog takes a turn although live windows are due."""
    ran = {True: timedelta(0), False: timedelta(0)}
    for attempt in attempts:
        took = attempt.ended_at - max(attempt.began_at, now - LOOKED_AT)
        ran[attempt.is_backlog] += max(took, timedelta(0))
    together = ran[True] + ran[False]
    return together >= BUSY * LOOKED_AT and ran[True] < SHARE * together


def backlog_may_begin(attempts: Sequence[Attempt], front: Front) -> bool:
    """Whether backlog may begin, while no live window is due: if there is time before the next one closes, or if it has
    waited for long."""
    closes_at = front.closes_at
    if closes_at is None or front.at + WORTH_WHILE <= closes_at:
        return True
    return all(front.at - attempt.began_at > PATIENCE for attempt in attempts if attempt.is_backlog)


@dataclass
class Parts:
    """Cuts a backlog run into parts, which take about AIM_SECONDS each, and says when it ends. It `makes_way` for live
    windows where these cannot have a run beside it."""

    began: float
    first_open: int
    makes_way: bool = True
    seconds_per_window: float | None = None
    last: int = field(default=FIRST_PART // GROWTH)

    def size(self) -> int:
        """How many windows the next part has."""
        most = self.last * GROWTH
        if self.seconds_per_window is None:
            return most
        return max(1, min(most, int(AIM_SECONDS / self.seconds_per_window)))

    def took(self, windows: int, seconds: float) -> None:
        """Note how long a part took."""
        self.seconds_per_window = max(seconds, 0.001) / windows
        self.last = max(windows, FIRST_PART // GROWTH)

    def ends(self, windows: int, now: float, front: Front) -> bool:
        """Whether the run ends here, before a part of so many windows; never before its first part. It ends when it has
        taken long, when a live window has closed, and when one would close before the next part is done."""
        if self.seconds_per_window is None:
            return False
        seconds = windows * self.seconds_per_window
        if now - self.began + seconds > LONGEST_SECONDS:
            return True
        closes_at = front.closes_at
        if closes_at is None or not self.makes_way:
            return False
        return front.first_open > self.first_open or front.at + timedelta(seconds=seconds + TO_END_SECONDS) > closes_at
