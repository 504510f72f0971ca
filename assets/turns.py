"""Which of the wanted windows are computed next: one that keeps failing rests, while the others go on.

Windows are named by their numbers. The newest come first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.clock import iso
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Windowing

FIRST_REST, LONGEST_REST = timedelta(seconds=15), timedelta(minutes=10)
"""The rest after a window's first failure, which doubles with each further one, and its limit."""

SUSPECT, STEP = 2, 4
"""After SUSPECT failures of windows together, a run takes one STEP-th of them, until the one that fails is alone. A
single failure may have been an interruption."""

NAMED = 3
"""Resting windows that a sentence names."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that has ended: the windows that it tried, whether it failed, and when it began and ended."""

    windows: Spans
    failed: bool
    began_at: datetime
    ended_at: datetime
    is_backlog: bool = False


@dataclass(frozen=True, slots=True)
class Failing:
    """A window whose runs have failed since one succeeded: how many, when the last ended, how many windows it had."""

    window: int
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
    """The windows to compute now, the newest first, and those passed over because they rest."""

    windows: Sequence[int]
    resting: Sequence[Failing]

    def sentence(self, windowing: Windowing) -> str:
        """The first resting windows by name, and how many more there are; empty if none rests."""
        if not self.resting:
            return ""
        named = ", ".join(
            f"{windowing.numbered(rest.window).key} ({rest.failures} failed, again at {iso(rest.rests_until)})"
            for rest in self.resting[:NAMED]
        )
        more = "" if len(self.resting) <= NAMED else f" and {len(self.resting) - NAMED} more"
        return f"resting after failures: {named}{more}"


def take_turn(
    wanted: Iterable[range],
    attempts: Sequence[Attempt],
    now: datetime,
    max_windows: int,
    *,
    contiguous: bool = False,
) -> Turn:
    """The newest windows that do not rest, at most `max_windows`; if `contiguous`, without a gap. `wanted` are
    stretches, the newest first, of which no more are looked at than it takes; `attempts` are newest first.

    A window rests after a run over it failed: FIRST_REST, doubled with each failure since the last success, at most
    LONGEST_REST. Windows that keep failing together are tried in ever smaller parts, until the one that causes it rests
    alone. However many windows fail, each other window gets its turn.
    """
    chosen: list[int] = []
    resting: list[Failing] = []
    most = max_windows
    for window in (number for stretch in wanted for number in reversed(stretch)):
        failing = _failing(window, attempts)
        if failing is not None and now < failing.rests_until:
            resting.append(failing)
            continue
        is_suspect = failing is not None and failing.failures >= SUSPECT
        at_most = min(max_windows, max(1, failing.together // STEP)) if failing and is_suspect else max_windows
        if not chosen:
            most = at_most
        elif at_most != most or (contiguous and chosen[-1] != window + 1):
            break
        chosen.append(window)
        if len(chosen) == most:
            break
    return Turn(chosen, resting)


def _failing(window: int, attempts: Sequence[Attempt]) -> Failing | None:
    """The failures of a window since its last success; None without any."""
    failed = []
    for attempt in attempts:
        if window in attempt.windows:
            if not attempt.failed:
                break
            failed.append(attempt)
    return Failing(window, len(failed), failed[0].ended_at, len(failed[0].windows)) if failed else None
