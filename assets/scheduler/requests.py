"""Requests runs over windows: chooses the windows, and decides whether a run may start now."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

import dagster as dg

from tidemark.assets.partitions import stretch_texts, windows_tag
from tidemark.assets.scheduler.runs import Runs, attempt_of, doing, ended_at, ended_attempts, report_dead
from tidemark.assets.scheduler.turns import (
    LONGEST_PAUSE,
    Front,
    rest_after,
    resting_sentence,
    room_for_older,
    take_turn,
)
from tidemark.pipeline.clock import EPOCH, Clock, is_recent
from tidemark.pipeline.orchestrator.names import BACKLOG, COMPUTE_WINDOWS, WINDOWS, name_of, op_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import WINDOWS_PER_RUN, Spans, Window, Windowing
from tidemark.resources.lake import LakeResource

FAILURES_COUNTED = 10
"""Number of newest runs of a job that are read when its consecutive failures are counted."""

SEEN_WITHIN = timedelta(seconds=5)
"""Maximum time until other sensors can see a requested run. Dagster creates the run after the sensor's function has
returned."""

LOOK_EVERY = timedelta(minutes=1)
"""Interval between two checks for due windows, while the last check found none and no further window closes."""

CHOOSE_WITHIN_SECONDS = 15.0
"""Maximum time for which a tick waits for the choice of windows. Dagster ends a tick after 60 s."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a run over windows, and a sentence that gives the reason. If there are no windows, no run is
    requested, and the sentence says why."""

    windows: Sequence[Window]
    sentence: str
    is_backlog: bool = False

    def result(self, settings: Settings, log: logging.Logger, opening: str, **more: Any) -> dg.SensorResult:
        """Build the result of a sensor: the run request or, without windows, a skip reason that begins with `opening`.
        `more` are further arguments of the result.

        The request has no run key, because a window whose run failed must be requested again.
        """
        if not self.windows:
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{opening}{self.sentence}"), **more)
        log.info(self.sentence)
        tags = {BACKLOG: "true"} if self.is_backlog else {}
        asked = run_over(settings, COMPUTE_WINDOWS, self.windows, tags)
        return dg.SensorResult(run_requests=[asked], **more)


def run_over(settings: Settings, job: str, windows: Sequence[Window], tags: Mapping[str, str]) -> dg.RunRequest:
    """Build a request for a run of a job over these windows, which must be in order."""
    tags = {WINDOWS: windows_tag(windows), **tags}
    config = {"ops": {name_of(settings, op_of(job)): {"config": {"windows": stretch_texts(windows)}}}}
    return dg.RunRequest(job_name=name_of(settings, job), run_config=config, tags=tags)


CHOICE = "choice"
"""`LakeResource` caches the objects for choosing windows under this name, which all requesting sensors share."""


class WindowChooser:
    """Chooses windows for all sensors that share this object, one choice at a time, in a separate thread.

    A choice reuses what earlier choices have read. A failed or slow choice does not fail the tick. After a sensor has
    requested a run, no other sensor requests a run for SEEN_WITHIN.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._one_at_a_time = ThreadPoolExecutor(1, thread_name_prefix="choice")
        self._under_way: dict[str, Future[Request]] = {}
        self._asked = ("", EPOCH)

    def request(self, user: str, choose: Callable[[], Request], log: logging.Logger) -> Request:
        """Run `choose` for the sensor `user`, and return its request. If the choice fails, takes too long, or comes too
        soon after another sensor's request, return a request without windows that says why. If a choice took too long,
        the next call returns the windows that this choice found."""
        chosen = self._under_way.get(user)
        if chosen is not None and not chosen.done():
            return Request((), "no window is requested: an earlier tick's choice of windows is still under way")
        if chosen is None or chosen.cancelled() or chosen.exception() or not chosen.result().windows:
            chosen = self._under_way[user] = self._one_at_a_time.submit(self._chosen, user, choose)
            if not wait((chosen,), CHOOSE_WITHIN_SECONDS).done:
                chosen.cancel()  # it may not have begun, if another sensor's choice is under way
                return Request((), f"no window is requested: choosing takes longer than {CHOOSE_WITHIN_SECONDS:g} s")
        del self._under_way[user]
        try:
            return chosen.result()
        except Exception as error:  # whatever the error, the tick's work is durable and is reported
            log.error("the choice of windows failed", exc_info=error)
            return Request((), f"no window is requested, because the choice failed: {error}")

    def _chosen(self, user: str, choose: Callable[[], Request]) -> Request:
        if self._asked[0] not in ("", user) and is_recent(self._asked[1], self._clock.now(), SEEN_WITHIN):
            return Request((), "no window is requested: another sensor has just requested a run")
        request = choose()
        if request.windows:
            self._asked = user, self._clock.now()
        return request


def next_request(
    runs: Runs,
    lake: LakeResource,
    watermark: datetime | None,
    now: datetime,
    stale: Sequence[Window] = (),
    most: int = WINDOWS_PER_RUN,
) -> Request:
    """Request due windows, newest first. Live windows have priority, and older windows are requested between runs over
    live ones. If there are windows in `stale`, they are requested in place of the older ones.

    Windows that are on hold after failures are left out. A window that ends in the future by this machine's clock is
    left for later, even if the sources' clocks are ahead.
    """
    windows, windowing = lake.settings.windows, lake.settings.windowing
    at_it = report_dead(runs, COMPUTE_WINDOWS, now)
    working = [attempt_of(record, windowing, now) for record in at_it]
    nothing = doing(at_it[0], "is computing windows") if at_it else "every closed window is computed"
    if len(working) >= windows.runs_at_once:
        return Request((), nothing)
    if watermark is None or (due := due_now(lake, min(watermark, now), now)) is None:
        return Request((), "no window is closed yet")
    front = Front.of(windowing, min(watermark, now), now)
    others, end = (_numbers(stale, windowing), front.first_open) if stale else (due, front.first_live)
    older_wait = others.least is not None and others.least < end
    waits = lake.kept.get((CHOICE, "waits since"), dict[bool, datetime])
    waited = abs(now - waits.setdefault(bool(stale), now))  # negative if the clock was set back since
    if not older_wait:
        del waits[bool(stale)]
    if not due and not stale:
        return Request((), nothing)

    ended, taken = ended_attempts(runs, windowing), Spans()
    reach = -(-windows.lookback // windows.length)
    for stretch in (one for run in working for one in run.windows.within(range(front.first_open))):
        taken.add(range(stretch.start - reach, stretch.stop + reach))  # neighbouring windows share input
    chosen, resting = take_turn(due.without(taken, range(front.first_live, front.first_open)), ended, now, most)
    room, why = room_for_older(front, windows.runs_at_once, working, ended, now, waited=waited, live_due=bool(chosen))
    if room:
        waits.pop(bool(stale), None)
    older, more = take_turn(others.without(taken, range(end)), ended, now, min(most, room)) if room else ([], [])
    asked = [windowing.numbered(number) for number in sorted(older or chosen)]
    said = [resting_sentence([*resting, *more], windowing)]
    if asked:
        kind, count = ("older", len(others)) if older else ("due", len(due))
        said.insert(0, f"computing {len(asked)} of {count} {kind} windows, from {asked[0]} on")
    elif why and older_wait:
        said.append(f"older windows wait: {why}")
    return Request(asked, "; ".join(filter(None, said)) or nothing, bool(older))


def due_now(lake: LakeResource, watermark: datetime, now: datetime) -> Spans | None:
    """Return the numbers of closed windows that are not computed, or None if the window of the first heartbeat is not
    closed yet. Raises LakeError."""
    windowing, done = lake.settings.windowing, lake.kept.get((CHOICE, "nothing_due"), NothingDue)
    front = Front.of(windowing, watermark, now)
    if done.holds(front.first_open, now):
        return Spans()
    index = lake.window_index(CHOICE).update()
    if index.held.least is None or index.held.least >= front.first_open:
        return None
    due = Spans(*index.due(range(windowing.number_of(windowing.first), front.first_open)))
    if due.least is not None and due.least < front.first_live:  # live windows are never past the retention boundary
        due = Spans(*due.within(lake.kept_windows().closed(watermark)))
    done.note(front.first_open, now, is_due=bool(due))
    return due


@dataclass
class NothingDue:
    """Remembers that the last check found no due window, and the facts behind this result, such as which windows are
    closed. While the facts stay the same, the check is repeated only every LOOK_EVERY. If the lake is in a bucket, a
    check costs half a dozen requests."""

    _found: tuple[Hashable, datetime] | None = None

    def note(self, known: Hashable, now: datetime, *, is_due: bool) -> None:
        """Record a check's result. If no window was due, `known` contains the facts behind this result."""
        self._found = None if is_due else (known, now)

    def holds(self, known: Hashable, now: datetime) -> bool:
        """Return True if the last check found no due window, was based on facts equal to `known`, and is less than
        LOOK_EVERY ago."""
        return self._found is not None and self._found[0] == known and is_recent(self._found[1], now, LOOK_EVERY)


def _numbers(windows: Iterable[Window], windowing: Windowing) -> Spans:
    numbers = (windowing.number_of(window.start) for window in windows)
    return Spans(*(range(number, number + 1) for number in numbers))


def pause_of(
    runs: Runs,
    job_name: str,
    now: datetime,
    does: str = "is computing windows",
    longest: timedelta = LONGEST_PAUSE,
    counts: Callable[[dg.RunRecord], bool] = lambda _: True,
) -> str | None:
    """Return why no run of a job may be requested now, or None if one may be. Runs whose process has died are first
    reported as failed. There are two reasons:

    - A run is under way. The reason is then `run <id>`, followed by the words in `does`.
    - The pause after failed runs is not over. It grows with each consecutive failure, up to `longest`. A failed run for
      which `counts` is false ends the series, as a success does.
    """
    if at_it := report_dead(runs, job_name, now):
        return doing(at_it[0], does)
    latest = runs.newest(job_name, FAILURES_COUNTED)
    failure = dg.DagsterRunStatus.FAILURE
    failures = list(takewhile(lambda record: record.dagster_run.status is failure and counts(record), latest))
    pause = rest_after(len(failures), longest)
    if not failures or not is_recent(ended_at(failures[0]), now, pause):
        return None
    return f"the last {len(failures)} runs failed; the next run is requested {pause} after the last failure"
