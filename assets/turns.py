"""Which of the wanted windows are computed next: one that keeps failing rests, while the others go on."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from pipeline.clock import iso
from pipeline.windows import KEY_FORMAT, Window, runs_of_neighbours

FIRST_REST, LONGEST_REST = timedelta(seconds=15), timedelta(minutes=10)
"""The rest after a window's first failure, which doubles with each further one, and its limit."""

SUSPECT, STEP = 2, 4
"""After SUSPECT failures of windows together, a run takes one STEP-th of them, until the one that fails is alone. A
single failure may have been an interruption."""

NAMED = 3
"""Resting windows that a sentence names."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that has ended: its first and last window, by key, whether it failed, and when it ended."""

    first: str
    last: str
    failed: bool
    ended_at: datetime


@dataclass(slots=True)
class Failing:
    """A window whose runs have failed since one succeeded: how many, when the last ended, how many windows it had."""

    window: Window
    failures: int
    ended_at: datetime
    together: int

    @property
    def rests_until(self) -> datetime:
        """When it may be tried again."""
        rest: timedelta = FIRST_REST * 2 ** min(self.failures - 1, 20)
        return self.ended_at + min(rest, LONGEST_REST)


@dataclass(frozen=True, slots=True)
class Turn:
    """The windows to compute now, without a gap, and the windows that rest."""

    windows: Sequence[Window]
    resting: Sequence[Failing]

    @property
    def sentence(self) -> str:
        """The first resting windows by name, and how many more there are; empty if none rests."""
        if not self.resting:
            return ""
        named = ", ".join(
            f"{rest.window.key} ({rest.failures} failed, again at {iso(rest.rests_until)})"
            for rest in self.resting[:NAMED]
        )
        more = "" if len(self.resting) <= NAMED else f" and {len(self.resting) - NAMED} more"
        return f"resting after failures: {named}{more}"


def take_turn(wanted: Sequence[Window], attempts: Sequence[Attempt], now: datetime, max_windows: int) -> Turn:
    """The first stretch of windows that do not rest. `wanted` is in order, `attempts` newest first.

    A window rests after a run over it failed: FIRST_REST, doubled with each failure since the last success, at most
    LONGEST_REST. Windows that keep failing together are tried in ever smaller parts, until the one that causes it rests
    alone. However many windows fail, each other window gets its turn.
    """
    failing = _failing(wanted, attempts)
    resting = [failed for failed in failing.values() if now < failed.rests_until]
    idle = {rest.window for rest in resting}
    ready = [window for window in wanted if window not in idle]
    if not ready:
        return Turn((), resting)

    def at_most(window: Window) -> int:
        failed = failing.get(window)
        return max_windows if failed is None or failed.failures < SUSPECT else max(1, failed.together // STEP)

    stretch, most = runs_of_neighbours(ready)[0], at_most(ready[0])
    return Turn(list(takewhile(lambda window: at_most(window) == most, stretch))[: min(most, max_windows)], resting)


def _failing(wanted: Sequence[Window], attempts: Sequence[Attempt]) -> dict[Window, Failing]:
    keys = [window.key for window in wanted]
    settled: set[str] = set()
    found: dict[Window, Failing] = {}
    for attempt in attempts:
        low, high = bisect_left(keys, attempt.first), bisect_right(keys, attempt.last)
        if low == high:
            continue
        together = 1 + (_start(attempt.last) - _start(attempt.first)) // (wanted[0].end - wanted[0].start)
        for window in wanted[low:high]:
            if window.key in settled:
                continue
            if not attempt.failed:
                settled.add(window.key)
            elif window in found:
                found[window].failures += 1
            else:
                found[window] = Failing(window, 1, attempt.ended_at, together)
    return found


def _start(key: str) -> datetime:
    return datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
