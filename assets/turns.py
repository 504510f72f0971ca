"""Whose turn it is among the windows that are wanted: one that keeps failing rests, and the others go on."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from pipeline.clock import iso
from pipeline.windows import Window, runs_of_neighbours

FIRST_REST, LONGEST_REST = timedelta(seconds=15), timedelta(minutes=10)
STEP = 4
"""After a failure a quarter of as many windows is tried, until the one that fails is alone; after a success, more."""
NAMED = 3


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that has ended: the keys of its first and last window, whether it failed, and when it ended."""

    first: str
    last: str
    failed: bool
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Resting:
    """A window whose last runs failed, and when it is tried again."""

    window: Window
    failures: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Turn:
    """The windows to compute now, without a gap, and those that rest."""

    windows: Sequence[Window]
    resting: Sequence[Resting]

    @property
    def sentence(self) -> str:
        """Who rests, by name."""
        if not self.resting:
            return ""
        named = ", ".join(
            f"{rest.window.key} ({rest.failures} failed, again at {iso(rest.until)})" for rest in self.resting[:NAMED]
        )
        more = "" if len(self.resting) <= NAMED else f" and {len(self.resting) - NAMED} more"
        return f"resting after failures: {named}{more}"


def take_turn(wanted: Sequence[Window], attempts: Sequence[Attempt], now: datetime, max_windows: int) -> Turn:
    """The first stretch of windows that do not rest. `wanted` is in order, `attempts` newest first.

    A window rests after a run over it failed: 15 s, doubled with each failure since the last success, at most 10 min.
    A stretch that failed is tried in ever smaller parts, so that a window that fails by itself is soon alone in its
    rest, and what had only been interrupted soon goes on as before. However many fail, every other one gets its turn.
    """
    failures = _failures(wanted, attempts)
    resting = [
        Resting(window, count, ended_at + min(FIRST_REST * 2 ** min(count - 1, 20), LONGEST_REST))
        for window, (count, ended_at) in failures.items()
    ]
    resting = [rest for rest in resting if now < rest.until]
    idle = {rest.window for rest in resting}
    ready = [window for window in wanted if window not in idle]
    if not ready:
        return Turn((), resting)
    stretch = runs_of_neighbours(ready)[0]
    failed, _ = failures.get(stretch[0], (0, now))
    alike = takewhile(lambda window: failures.get(window, (0, now))[0] == failed, stretch)
    return Turn(list(alike)[: _at_most(attempts, max_windows)], resting)


def _at_most(attempts: Sequence[Attempt], max_windows: int) -> int:
    """How many windows to try at once: less after a run over several has failed, more again after a success. A window
    that fails alone says nothing about the others."""
    at_most = max_windows
    for attempt in reversed(attempts):
        if not attempt.failed:
            at_most = min(max_windows, at_most * STEP)
        elif attempt.first != attempt.last:
            at_most = max(1, at_most // STEP)
    return at_most


def _failures(wanted: Sequence[Window], attempts: Sequence[Attempt]) -> dict[Window, tuple[int, datetime]]:
    """How many runs over each window failed since one succeeded, and when the last of them ended."""
    keys = [window.key for window in wanted]
    settled: set[str] = set()
    found: dict[Window, tuple[int, datetime]] = {}
    for attempt in attempts:
        for number in range(bisect_left(keys, attempt.first), bisect_right(keys, attempt.last)):
            if keys[number] in settled:
                continue
            if attempt.failed:
                count, ended_at = found.get(wanted[number], (0, attempt.ended_at))
                found[wanted[number]] = count + 1, ended_at
            else:
                settled.add(keys[number])
    return found
