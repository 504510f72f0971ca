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


@dataclass(frozen=True, slots=True)
class Resting:
    """A window whose last runs failed, and when it may be tried again."""

    window: Window
    failures: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Turn:
    """The windows to compute now, without a gap, and the windows that rest."""

    windows: Sequence[Window]
    resting: Sequence[Resting]

    @property
    def sentence(self) -> str:
        """The first resting windows by name, and how many more there are; empty if none rests."""
        if not self.resting:
            return ""
        named = ", ".join(
            f"{rest.window.key} ({rest.failures} failed, again at {iso(rest.until)})" for rest in self.resting[:NAMED]
        )
        more = "" if len(self.resting) <= NAMED else f" and {len(self.resting) - NAMED} more"
        return f"resting after failures: {named}{more}"


def take_turn(wanted: Sequence[Window], attempts: Sequence[Attempt], now: datetime, max_windows: int) -> Turn:
    """The first stretch of windows that do not rest. `wanted` is in order, `attempts` newest first.

    A window rests after a run over it failed: FIRST_REST, doubled with each failure since the last success, at most
    LONGEST_REST. Windows that keep failing together are tried in ever smaller parts, until the one that causes it rests
    alone. However many windows fail, each other window gets its turn.
    """
    failures = _failures(wanted, attempts)
    resting = []
    for window, failed in failures.items():
        until = failed.ended_at + min(FIRST_REST * 2 ** min(failed.count - 1, 20), LONGEST_REST)
        if now < until:
            resting.append(Resting(window, failed.count, until))
    idle = {rest.window for rest in resting}
    ready = [window for window in wanted if window not in idle]
    if not ready:
        return Turn((), resting)

    def at_most(window: Window) -> int:
        failed = failures.get(window)
        return max_windows if failed is None or failed.count < SUSPECT else max(1, failed.together // STEP)

    stretch, most = runs_of_neighbours(ready)[0], at_most(ready[0])
    return Turn(list(takewhile(lambda window: at_most(window) == most, stretch))[: min(most, max_windows)], resting)


@dataclass(slots=True)
class _Failed:
    """The failed runs over a window since one succeeded: how many, when the last ended, and how many windows it had."""

    count: int
    ended_at: datetime
    together: int


def _failures(wanted: Sequence[Window], attempts: Sequence[Attempt]) -> dict[Window, _Failed]:
    keys = [window.key for window in wanted]
    settled: set[str] = set()
    found: dict[Window, _Failed] = {}
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
                found[window].count += 1
            else:
                found[window] = _Failed(1, attempt.ended_at, together)
    return found


def _start(key: str) -> datetime:
    return datetime.strptime(key, KEY_FORMAT).replace(tzinfo=UTC)
