"""Chooses the windows to compute next, as pure functions of time. Windows are identified by their numbers.

- *Live* windows end close to the watermark. They exist only if the watermark is close to the clock, and come first.
- *Older* windows (backlog) are all other due windows, and all stale windows. They are computed between live windows.

A window that keeps failing is put on hold (it *rests*), while other windows continue.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TypeAlias

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.windows import Spans, Windowing

LIVE = timedelta(minutes=10)
"""A closed window is live if it ends at most this long before the watermark. The newest closed window is always live,
even if windows are longer than this."""

LIVE_LAG = timedelta(hours=1)
"""Maximum lag of the watermark behind the clock at which windows are live. At a larger lag, such as after an outage, no
window is live, but the newest windows still come first."""

SHORTEST, LONGEST = timedelta(seconds=15), timedelta(minutes=1)
"""Minimum and maximum time budget of a run over older windows."""

AROUND = timedelta(seconds=5)
"""The part of a run's time budget that is set aside for the run's start and end. The rest is for computing windows."""

FIRST, GROWTH = 48, 4
"""FIRST is the number of older windows in a run if no earlier run tells how long windows take. GROWTH is the maximum
factor by which the number of windows grows from run to run."""

PATIENCE = timedelta(minutes=1)
"""Maximum time that older windows wait if only one run at a time is allowed. After this time, they get a run with the
minimum time budget, even if live windows are due or about to close."""

FIRST_REST, LONGEST_REST, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10), timedelta(minutes=1)
"""Pauses after failures: FIRST_REST after the first failure, and twice the last pause after each further failure. The
maximum is LONGEST_REST for a window, and LONGEST_PAUSE for a job."""

SUSPECT, STEP = 2, 4
"""If windows fail together SUSPECT times in a row, the next run takes only a fraction of them, 1 / STEP. Each further
failure divides their number by STEP again, until the failing window is alone. SUSPECT is not 1, because a single
failure may be an interruption."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run over windows: whether it failed, when it began, and when it ended. For an unfinished run, `ended_at` is the
    current time."""

    windows: Spans
    failed: bool
    began_at: datetime
    ended_at: datetime
    is_backlog: bool = False


Attempts: TypeAlias = Sequence[Attempt]


@dataclass(frozen=True, slots=True)
class Front:
    """The watermark's position among the windows: the numbers of the first live window and of the first open window,
    and the time until the next live window closes."""

    first_live: int
    first_open: int
    gap: timedelta

    @classmethod
    def of(cls, windowing: Windowing, watermark: datetime, now: datetime) -> "Front":
        """Compute the watermark's position at `now`. The watermark must not be later than `now`. `gap` assumes that the
        watermark advances as fast as the clock. If the watermark lags more than LIVE_LAG, `gap` is LONGEST."""
        first_open = windowing.number_of(watermark)
        if now - watermark > LIVE_LAG:
            return cls(first_open, first_open, LONGEST)
        first_live = min(windowing.number_of(watermark - LIVE), first_open - 1)
        return cls(first_live, first_open, windowing.numbered(first_open).end - watermark)


@dataclass(frozen=True, slots=True)
class Rest:
    """The hold on a window whose newest runs failed: when the hold ends, and the maximum number of windows in the next
    run that contains this window."""

    window: int
    until: datetime
    at_most: int


def rest_after(failures: int, longest: timedelta = LONGEST_REST) -> timedelta:
    """Return the pause after this many consecutive failures."""
    rest: timedelta = FIRST_REST * 2 ** min(failures - 1, 20)
    return min(rest, longest)


def take_turn(wanted: Iterable[range], attempts: Attempts, now: datetime, most: int) -> tuple[list[int], list[Rest]]:
    """Return at most `most` windows: the newest that are not on hold. Also return the holds on the windows that were
    skipped.

    `wanted` are ranges of windows, newest first, and are read only as far as needed. `attempts` are ended runs, newest
    first. Windows that fail together are tried in ever smaller groups, so that in the end only the window that causes
    the failures is on hold.
    """
    chosen, resting = list[Rest](), list[Rest]()
    for window in (number for stretch in wanted for number in reversed(stretch)):
        rest = _rest_of(window, attempts, most)
        if now < rest.until <= now + LONGEST_REST:  # or the clock was set back
            resting.append(rest)
            continue
        if chosen and rest.at_most != chosen[0].at_most:
            break
        chosen.append(rest)
        if len(chosen) == rest.at_most:
            break
    return [rest.window for rest in chosen], resting


def _rest_of(window: int, attempts: Attempts, most: int) -> Rest:
    if not (failed := failures_in_a_row(attempt for attempt in attempts if window in attempt.windows)):
        return Rest(window, EPOCH, most)
    part = max(1, len(failed[0].windows) // STEP) if len(failed) >= SUSPECT else most
    return Rest(window, failed[0].ended_at + rest_after(len(failed)), min(most, part))


def failures_in_a_row(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the failures since the last success. `attempts` and the result are newest first."""
    return list(takewhile(lambda attempt: attempt.failed, attempts))


def resting_sentence(resting: Sequence[Rest], windowing: Windowing) -> str:
    """Describe how many windows are on hold, and which is tried again first. Return "" if no window is on hold."""
    if not resting:
        return ""
    first = min(resting, key=lambda rest: rest.until)
    key = windowing.numbered(first.window).key
    return f"windows on hold after failures: {len(resting)}; {key} is tried again first, at {iso(first.until)}"


def room_for_older(
    front: Front, at_once: int, working: Attempts, ended: Attempts, now: datetime, *, waited: timedelta, live_due: bool
) -> tuple[int, str]:
    """Return the number of older windows that a new run may compute now. If the number is 0, also return the reason.

    - `at_once` is the maximum number of runs at the same time. If it is 1, a run over older windows must fit before the
      next live window closes. Once the older windows have waited for PATIENCE, they get a short run in any case. If
      `at_once` is larger, one run is reserved for live windows.
    - `waited` is the time that older windows have waited.
    - `ended` lists the runs that have ended, newest first. The size of the new run is estimated from them.
    """
    failed = failures_in_a_row(run for run in ended if run.is_backlog)
    if failed and now < (until := failed[0].ended_at + rest_after(len(failed), LONGEST_PAUSE)) <= now + LONGEST_PAUSE:
        return 0, f"consecutive failed runs over older windows: {len(failed)}; the next is requested at {iso(until)}"
    time = LONGEST
    if at_once == 1:
        time = min(time, timedelta(0) if live_due else front.gap)
        if time < SHORTEST and waited < PATIENCE:
            return 0, "a live window is due, or about to close"
    elif live_due or sum(run.is_backlog for run in working) >= at_once - 1:
        return 0, "the last free slot for runs is reserved for live windows"
    return _fitting(max(time, SHORTEST), ended), ""


def _fitting(time: timedelta, ended: Attempts) -> int:
    """Return the number of older windows that a run computes within the time budget `time`.

    The last successful run over older windows is compared with an earlier one that had at most half or at least twice
    as many windows. The comparison shows how long a run takes to start, and how long each window takes. If the start
    leaves little of the budget, the run may still compute windows for as long as the start takes, up to a maximum of
    SHORTEST - AROUND. Without this rule, runs would soon have only one window each."""
    runs = [
        (len(run.windows), max(run.ended_at - run.began_at, timedelta(seconds=1)))
        for run in ended
        if run.is_backlog and run.windows and not run.failed
    ]
    if not runs:
        return FIRST
    count, took = runs[0]
    other, other_took = next((run for run in runs if not count < 2 * run[0] < 4 * count), (0, timedelta(0)))
    each = max(min((took - other_took) / (count - other), took / count), timedelta.resolution)
    start = took - count * each
    of_windows = max(time - AROUND - start, min(start, SHORTEST - AROUND))
    return max(1, min(int(of_windows / each), max(FIRST, GROWTH * count)))
