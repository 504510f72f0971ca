"""Requests runs over windows: chooses the windows, and decides whether a run may start now."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, takewhile
from typing import Any

import dagster as dg

from tidemark.assets.partitions import stretch_texts, windows_tag
from tidemark.assets.scheduler import turns
from tidemark.assets.scheduler.runs import Runs, attempt_of, doing, ended_at, ended_attempts, is_held, report_dead
from tidemark.pipeline.clock import EPOCH, format_duration, is_recent
from tidemark.pipeline.orchestrator.names import BACKLOG, COMPUTE_WINDOWS, WINDOWS, name_of, op_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import WINDOWS_PER_RUN, Spans, Window
from tidemark.resources.lake import LakeResource

FAILURES_COUNTED = 10
"""Number of newest runs of a job that are read when its consecutive failures are counted."""

LOOK_EVERY = timedelta(minutes=1)
"""Interval between two checks for due windows, while the last check found none and no further window closes."""

CHOOSE_WITHIN_SECONDS = 15.0
"""Maximum time that a tick waits for the choice of windows. Dagster ends a tick after 60 s."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a run over windows, and a sentence that gives the reason. If there are no windows, no run is
    requested, and the sentence says why. `is_held` is true if a run has been in Dagster's queue for over LOOK_EVERY."""

    windows: Sequence[Window]
    sentence: str
    is_backlog: bool = False
    is_held: bool = False

    def result(
        self, settings: Settings, context: dg.SensorEvaluationContext, opening: str, **more: Any
    ) -> dg.SensorResult:
        """Build the result of a sensor: the run request or, without windows, a skip reason that begins with `opening`.
        `more` are further arguments of the result.

        The request has no run key, because a window whose run failed must be requested again.
        """
        if not self.windows:
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{opening}{self.sentence}"), **more)
        context.log.info(self.sentence)
        asked = run_over(settings, COMPUTE_WINDOWS, self.windows, {BACKLOG: "true"} if self.is_backlog else {})
        return dg.SensorResult(run_requests=[asked], **more)


def run_over(settings: Settings, job: str, windows: Sequence[Window], tags: Mapping[str, str]) -> dg.RunRequest:
    """Build a request for a run of a job over these windows, which must be in order."""
    tags = {WINDOWS: windows_tag(windows), **tags}
    config = {"ops": {name_of(settings, op_of(job)): {"config": {"windows": stretch_texts(windows)}}}}
    return dg.RunRequest(job_name=name_of(settings, job), run_config=config, tags=tags)


CHOICE = "choice"
"""`LakeResource` caches the objects for choosing windows under this name."""

OLDER = (CHOICE, "older windows")
"""The key of the `OlderWindows` in `LakeResource.kept`."""


@dataclass
class OlderWindows:
    """The state of older windows that one choice of windows passes to the next.

    `counted`: the numbers of the stale windows to recompute, and the start of the tick that finished counting them.
    `waits_since`: the time since which older windows have waited for a run; None if none waits.
    `was_stale`: whether the last run over older windows was over stale ones.
    """

    counted: tuple[Spans, datetime] = Spans(), EPOCH
    waits_since: datetime | None = None
    was_stale: bool = False

    def stale(self, ended: turns.Attempts, closed: range, now: datetime) -> Spans:
        """Return the closed stale windows that none of the runs in `ended` has computed since the count. A run that
        ended after `now` does not count, because the clock was set back."""
        counted, at = self.counted
        computed = (run.windows.within(closed) for run in ended if not run.failed and at < run.ended_at <= now)
        return Spans(*counted.without(Spans(*chain.from_iterable(computed)), closed))


class WindowChooser:
    """Chooses the windows of runs, one choice at a time, in a separate thread.

    A choice reuses what earlier choices have read. A failed or slow choice does not fail the tick.
    """

    def __init__(self) -> None:
        self._one_at_a_time = ThreadPoolExecutor(1, thread_name_prefix="choice")
        self._under_way: Future[Request] | None = None

    def request(self, choose: Callable[[], Request], context: dg.SensorEvaluationContext) -> Request:
        """Run `choose`, and return its request. If the choice fails or takes too long, return a request without windows
        that says why. If a choice took too long, a later call returns the windows that this choice found."""
        chosen = self._under_way
        if chosen is not None and not chosen.done():
            return Request((), "no window is requested: an earlier tick's choice of windows is still under way")
        if chosen is None or chosen.exception() or not chosen.result().windows:
            chosen = self._under_way = self._one_at_a_time.submit(choose)
            if not wait((chosen,), CHOOSE_WITHIN_SECONDS).done:
                return Request((), f"no window is requested: choosing takes longer than {CHOOSE_WITHIN_SECONDS:g} s")
        self._under_way = None
        try:
            return chosen.result()
        except Exception as error:  # whatever the error, the tick's work is durable and is reported
            context.log.error("the choice of windows failed", exc_info=error)
            return Request((), f"no window is requested: choosing failed, and the next tick tries again: {error}")


def next_request(
    runs: Runs, lake: LakeResource, watermark: datetime | None, now: datetime, most: int = WINDOWS_PER_RUN
) -> Request:
    """Return a request for due windows, newest first. Live windows have priority. Older windows are requested between
    the runs for live windows. If some older windows are due and others are stale, due and stale windows take turns.

    Windows that are on hold after failures are left out. A window that ends in the future by this machine's clock is
    left for later, even if the sources' clocks are ahead.
    """
    windows, windowing = lake.settings.windows, lake.settings.windowing
    at_it = report_dead(runs, COMPUTE_WINDOWS, now)
    working = [attempt_of(record, windowing, now) for record in at_it]
    nothing = doing(at_it[0], "is computing windows") if at_it else "every closed window is computed"
    if len(working) >= windows.runs_at_once:
        return Request((), nothing, is_held=any(is_held(record, now - LOOK_EVERY) for record in at_it))
    if watermark is None or (due := due_now(lake, min(watermark, now), now)) is None:
        return Request((), "no window is closed yet")
    memory = lake.kept.get(OLDER, OlderWindows)
    if not due and not memory.counted[0]:
        memory.waits_since = None
        return Request((), nothing)

    front = turns.Front.of(windowing, min(watermark, now), now)
    ended, taken = ended_attempts(runs, windowing), Spans()
    reach = -(-windows.lookback // windows.length)
    for stretch in (one for run in working for one in run.windows.within(range(front.first_open))):
        taken.add(range(stretch.start - reach, stretch.stop + reach))  # neighbouring windows share input
    older, stale = Spans(*due.within(range(front.first_live))), memory.stale(ended, range(front.first_open), now)
    if is_stale := bool(stale) and not (older and memory.was_stale):
        older = stale
    waits_since = memory.waits_since = (memory.waits_since or now) if older else None
    chosen, resting = turns.take_turn(due.without(taken, range(front.first_live, front.first_open)), ended, now, most)
    waited = abs(now - (waits_since or now))  # negative if the clock was set back since
    room, why = turns.room_for_older(
        front, windows.runs_at_once, working, ended, now, waited=waited, live_due=bool(chosen)
    )
    asked, more = list[int](), list[turns.Rest]()
    if room:
        asked, more = turns.take_turn(older.without(taken, range(front.first_open)), ended, now, min(most, room))
        memory.waits_since, memory.was_stale = None, is_stale
    kind, count = ("stale" if is_stale else "older", len(older)) if asked else ("due", len(due))
    found = [windowing.numbered(number) for number in sorted(asked or chosen)]
    said = [turns.resting_sentence([*resting, *more], windowing)]
    if found:
        said.insert(0, f"computing {len(found)} of {count} {kind} windows, from {found[0]} on")
    elif why and older:
        said.append(f"older windows wait: {why}")
    return Request(found, "; ".join(filter(None, said)) or nothing, bool(asked))


def due_now(lake: LakeResource, watermark: datetime, now: datetime) -> Spans | None:
    """Return the numbers of closed windows that are not computed, or None if no closed window has a heartbeat. Raises
    LakeError if the lake cannot be read."""
    windowing, done = lake.settings.windowing, lake.kept.get((CHOICE, "nothing_due"), NothingDue)
    front = turns.Front.of(windowing, watermark, now)
    if done.holds(front.first_open, now):
        return Spans()
    index = lake.window_index(CHOICE).update()
    if index.held.least is None or index.held.least >= front.first_open:
        return None
    due = Spans(*index.due(range(windowing.number_of(windowing.first), front.first_open)))
    if due.least is not None and due.least < front.first_live:  # live windows are never past the retention boundary
        due = Spans(*due.within(lake.kept_windows(CHOICE).closed(watermark)))
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
        """Return True if the last check found no due window, was based on facts equal to `known`, and was less than
        LOOK_EVERY ago."""
        return self._found is not None and self._found[0] == known and is_recent(self._found[1], now, LOOK_EVERY)


def pause_of(
    runs: Runs,
    job_name: str,
    now: datetime,
    does: str = "is computing windows",
    longest: timedelta = turns.LONGEST_PAUSE,
    counts: Callable[[dg.RunRecord], bool] = lambda _: True,
) -> str | None:
    """Return why no run of a job may be requested now, or None if one may be. Dead runs are first reported as ended, by
    `report_dead`. There are two possible reasons:

    - A run is under way. The reason is then `run <id>` and the words in `does`, or says that the run is queued.
    - The pause after failed runs is not over. It grows with each consecutive failure, up to `longest`. A failed run for
      which `counts` is false ends the series, as a success does.
    """
    if at_it := report_dead(runs, job_name, now):
        return doing(at_it[0], does)
    latest, failure = runs.newest(job_name, FAILURES_COUNTED), dg.DagsterRunStatus.FAILURE
    failures = list(takewhile(lambda record: record.dagster_run.status is failure and counts(record), latest))
    pause = turns.rest_after(len(failures), longest)
    if not failures or not is_recent(ended_at(failures[0]), now, pause):
        return None
    return f"consecutive failed runs: {len(failures)}; the next is requested {format_duration(pause)} after the last"
