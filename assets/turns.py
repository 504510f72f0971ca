"""Whose turn it is among the windows that are wanted: one that keeps failing rests, and the others go on."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from pipeline.clock import iso
from pipeline.windows import KEY_FORMAT, Window, runs_of_neighbours

FIRST_REST, LONGEST_REST = timedelta(seconds=15), timedelta(minutes=10)
SUSPECT, STEP = 2, 4
"""A run may have been interrupted. Of windows that failed together twice in a row, a quarter is tried next, until the
one that fails is alone."""
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
    Windows that go on failing together are tried in ever smaller parts, so that one that fails by itself is soon
    alone in its rest. However many fail, every other one gets its turn.
    """
    failures = _failures(wanted, attempts)
    resting = [
        Resting(window, failed.count, failed.ended_at + min(FIRST_REST * 2 ** min(failed.count - 1, 20), LONGEST_REST))
        for window, failed in failures.items()
    ]
    resting = [rest for rest in resting if now < rest.until]
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
    """How many runs over a window failed since one succeeded; of the last: when it ended, and over how many windows."""

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
