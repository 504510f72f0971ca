"""The choice of the windows that are computed next, as pure functions of time.

*Live* windows end close to the watermark, while the watermark is close to the clock. Everything else that is due, and
every stale window, is *older*, or backlog. Live windows come first, older ones between them. A window that keeps
failing rests while the others go on. Windows are named by their numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TypeAlias

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Windowing

LIVE = timedelta(minutes=10)
"""A live window ends at most so long before the watermark. The newest closed window is live, however long windows
are."""

LIVE_LAG = timedelta(hours=1)
"""The greatest lag with live windows. Beyond it, as after an outage, none is live; the newest come first even so."""

SHORTEST, LONGEST = timedelta(seconds=15), timedelta(minutes=1)
"""The shortest and the longest time that a run over older windows is given."""

AROUND = timedelta(seconds=5)
"""The part of that time that passes until a run begins and after it has computed."""

FIRST, GROWTH = 48, 4
"""Older windows in a run, before the speed is known, and by how much the next run may have more than the last."""

PATIENCE = timedelta(minutes=1)
"""The longest that older windows wait until they get the shortest run although live windows are due, or about to
close."""

FIRST_REST, LONGEST_REST, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10), timedelta(minutes=1)
"""The rest after the first failure, which doubles with each further one; its limit for a window, and for a job."""

SUSPECT, STEP = 2, 4
"""After SUSPECT failures of windows together, a run takes one STEP-th of them, until the one that fails is alone. A
single failure may have been an interruption."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run over windows: whether it failed, when it began, and when it ended; one at work has ended now."""

    windows: Spans
    failed: bool
    began_at: datetime
    ended_at: datetime
    is_backlog: bool = False
    run_id: str = ""


Attempts: TypeAlias = Sequence[Attempt]


@dataclass(frozen=True, slots=True)
class Front:
    """The position of the watermark: the first live window, the first open one, and for how long no live one closes."""

    first_live: int
    first_open: int
    gap: timedelta

    @classmethod
    def of(cls, windowing: Windowing, watermark: datetime, now: datetime) -> "Front":
        """The front at a moment that the watermark has not passed. The watermark goes on as the clock does."""
        first_open = windowing.number_of(watermark)
        if now - watermark > LIVE_LAG:
            return cls(first_open, first_open, LONGEST)
        first_live = min(windowing.number_of(watermark - LIVE), first_open - 1)
        return cls(first_live, first_open, windowing.numbered(first_open).end - watermark)


@dataclass(frozen=True, slots=True)
class Rest:
    """The rest of a window whose newest runs failed: until when, and how many windows a run with it may have then."""

    window: int
    until: datetime
    at_most: int


def rest_after(failures: int, longest: timedelta = LONGEST_REST) -> timedelta:
    """The pause after so many failures in a row."""
    rest: timedelta = FIRST_REST * 2 ** min(failures - 1, 20)
    return min(rest, longest)


def take_turn(wanted: Iterable[range], attempts: Attempts, now: datetime, most: int) -> tuple[list[int], list[Rest]]:
    """The newest windows that do not rest, at most so many; and those passed over because they rest. `wanted` are
    stretches, the newest first, of which no more are looked at than it takes; `attempts` have ended, the newest first.

    Windows that keep failing together are tried in ever smaller parts, until the one that causes it rests alone.
    However many windows fail, each other window gets its turn.
    """
    chosen, resting = list[Rest](), list[Rest]()
    for window in (number for stretch in wanted for number in reversed(stretch)):
        rest = _rest_of(window, attempts, most)
        if now < rest.until:
            resting.append(rest)
            continue
        if chosen and rest.at_most != chosen[0].at_most:
            break
        chosen.append(rest)
        if len(chosen) == rest.at_most:
            break
    return [rest.window for rest in chosen], resting


def _rest_of(window: int, attempts: Attempts, most: int) -> Rest:
    """The rest after the failures of a window since its last success; without any, it is over."""
    failed = failures_in_a_row(attempt for attempt in attempts if window in attempt.windows)
    if not failed:
        return Rest(window, EPOCH, most)
    part = max(1, len(failed[0].windows) // STEP) if len(failed) >= SUSPECT else most
    return Rest(window, failed[0].ended_at + rest_after(len(failed)), min(most, part))


def failures_in_a_row(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The failures since the last success, the newest first, as the attempts are."""
    return list(takewhile(lambda attempt: attempt.failed, attempts))


def resting_sentence(resting: Sequence[Rest], windowing: Windowing) -> str:
    """The number of windows that rest, and the first that is tried again; empty if none does."""
    if not resting:
        return ""
    first = min(resting, key=lambda rest: rest.until)
    return (
        f"{len(resting)} windows rest after failures, {windowing.numbered(first.window).key} until {iso(first.until)}"
    )


def room_for_older(
    front: Front, at_once: int, working: Attempts, ended: Attempts, now: datetime, *, waited: timedelta, live_due: bool
) -> tuple[int, str]:
    """The number of older windows, which have `waited`, that a run may take now; if none, the reason. `ended` are the
    newest first.

    With one slot for runs, older windows get the gaps between the runs over live ones, or a short run after PATIENCE.
    With more slots, one is kept for live windows. A run is sized by what the last one took.
    """
    failed = failures_in_a_row(run for run in ended if run.is_backlog)
    if failed and now < (until := failed[0].ended_at + rest_after(len(failed), LONGEST_PAUSE)):
        return 0, f"the last {len(failed)} runs over such windows failed; the next is tried at {iso(until)}"
    time = LONGEST
    if at_once == 1:
        time = min(time, timedelta(0) if live_due else front.gap)
        if time < SHORTEST and waited < PATIENCE:
            return 0, "a live window is due, or about to close"
    elif live_due or sum(run.is_backlog for run in working) >= at_once - 1:
        return 0, "the last slot is for live windows"
    time = max(time, SHORTEST)
    last = next((run for run in ended if run.is_backlog and run.windows and not run.failed), None)
    if last is None:
        return FIRST, ""
    count, took = len(last.windows), max(last.ended_at - last.began_at, timedelta(seconds=1))
    return max(1, min(int(count * ((time - AROUND) / took)), max(FIRST, GROWTH * count))), ""
