"""Requests for runs: over live windows first, then over older and stale ones, one run at a time."""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

import dagster as dg

from tidemark.assets.attempts import AtWork, at_work, attempts_of, ended_at, stretch_texts
from tidemark.assets.live_first import Front, backlog_goes_first, backlog_may_begin
from tidemark.assets.lost_runs import report_dead
from tidemark.assets.runs import Runs
from tidemark.assets.turns import Turn, take_turn
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.services.dagster_names import (
    COMPUTE_BACKLOG,
    COMPUTE_WINDOWS,
    RANGE_END,
    RANGE_START,
    name_of,
)
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Window, Windowing
from tidemark.resources.lake import LakeResource

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=1)
"""The pause before any run after one failure, which doubles with each further failure in a row, and its limit. A window
that failed itself rests longer: see `take_turn`."""

FAILURES_COUNTED = 10
"""Newest runs that are read to count failures in a row."""

BACKLOG_OP = "compute_older"
"""The op of the job COMPUTE_BACKLOG."""

SEEN_WITHIN = timedelta(seconds=5)
"""How long a run that a sensor asks for may take until the others see it: Dagster creates it after the evaluation."""

LOOK_EVERY = timedelta(minutes=1)
"""How often windows that are due are looked up while no further one closes."""

CHOOSE_WITHIN_SECONDS = 15.0
"""How long a tick waits for a choice: with everything else it does, well within a sensor's 60 s."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run over windows, and a sentence that says why; without windows, why there is none. Windows of a backlog may
    have gaps between them and are computed in their order; others are a contiguous range, in order."""

    windows: Sequence[Window]
    sentence: str
    is_backlog: bool = False

    def result(
        self,
        context: dg.SensorEvaluationContext,
        settings: Settings,
        said: str,
        events: Sequence[dg.AssetMaterialization | dg.AssetCheckEvaluation],
        cursor: str | None = None,
    ) -> dg.SensorResult:
        """What a sensor returns: the run, or after what it `said` why it requests none.

        The run has no run key: a window whose run failed must be requested again.
        """
        if not self.windows:
            skipped = dg.SkipReason(f"{said}{self.sentence}")
            return dg.SensorResult(skip_reason=skipped, asset_events=events, cursor=cursor)
        context.log.info(self.sentence)
        return dg.SensorResult(run_requests=[self._run(settings)], asset_events=events, cursor=cursor)

    def _run(self, settings: Settings) -> dg.RunRequest:
        if self.is_backlog:
            config = {
                "ops": {name_of(settings, BACKLOG_OP): {"config": {"windows": list(stretch_texts(self.windows))}}}
            }
            return dg.RunRequest(job_name=name_of(settings, COMPUTE_BACKLOG), run_config=config)
        tags = {RANGE_START: self.windows[0].key, RANGE_END: self.windows[-1].key}
        return dg.RunRequest(job_name=name_of(settings, COMPUTE_WINDOWS), tags=tags)


CHOICE = "choice"
"""The `user` of the lake's parts that a choice of windows reads, whichever sensor asks for it."""


class OneAsks:
    """Chooses for the sensors that share it, one choice at a time and beside their ticks.

    What a choice has read serves the next. Neither a failure of a choice nor its slowness fails what a tick has done.
    A sensor gets no run until it can see the one that another has just asked for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._one_at_a_time = ThreadPoolExecutor(1, thread_name_prefix="choice")
        self._under_way: dict[str, Future[Request]] = {}
        self._asked: tuple[str, datetime] | None = None

    def request(self, user: str, choose: Callable[[], Request], log: logging.Logger) -> Request:
        """The choice of a sensor, `user`; a request without windows that says why if the choice fails, takes longer
        than a tick waits, or follows another sensor's too closely."""
        earlier = self._under_way.get(user)
        if earlier is not None and not earlier.done():
            return Request((), "no window is requested: an earlier tick's choice of windows is still under way")
        chosen = self._under_way[user] = self._one_at_a_time.submit(self._chosen, user, choose)
        try:
            return chosen.result(CHOOSE_WITHIN_SECONDS)
        except TookTooLong:
            chosen.cancel()  # one that has not begun, because another sensor's choice is under way
            return Request((), f"no window is requested: choosing takes longer than {CHOOSE_WITHIN_SECONDS:g} s")
        except Exception as error:  # whatever it is, what the tick did is durable and is reported
            log.error("the choice of windows failed", exc_info=error)
            return Request((), f"no window is requested, because the choice failed: {error}")

    def _chosen(self, user: str, choose: Callable[[], Request]) -> Request:
        if self._asked is not None and self._asked[0] != user and self._clock.now() - self._asked[1] < SEEN_WITHIN:
            return Request((), "no window is requested: another sensor has just asked for a run")
        request = choose()
        if request.windows:
            self._asked = user, self._clock.now()
        return request


def next_request(
    runs: Runs, lake: LakeResource, watermark: datetime | None, now: datetime, stale: Sequence[Window] | None = None
) -> Request:
    """Request what is due and does not rest: the newest live windows without a gap; if none is due, or if these keep
    the runs too busy, older ones, the newest first.

    With `stale` windows, these take the place of the older ones, and live ones are left to the sensor that closes them.
    A window that ends in the future by this machine's clock is left for later, even if the sources' clocks are ahead:
    Dagster has no partition for it yet.
    """
    if stale is not None and not stale:
        return Request((), "no stale window is to be computed again")
    windows, windowing = lake.settings.windows, lake.settings.windowing
    working = at_work(runs, windows, windowing, now)
    if (pause := pause_of_windows(runs, working, now)) is not None:
        return Request((), pause)
    front = front_of(lake, watermark, now)
    due = due_now(lake, front)
    if front is None or due is None:
        return Request((), "no window is closed yet")
    wanted = due if stale is None else _closed(stale, front)
    if not wanted:
        return Request((), "every closed window is computed")
    due, wanted = list(working.leaves(due)), list(working.leaves(wanted))
    if not wanted:
        return Request((), working.sentence())
    attempts, most = attempts_of(runs, windowing), windows.max_windows_per_run
    live = take_turn(_cut(due, front.first_live, front.first_open), attempts, now, most, contiguous=True)
    first_kept_for_live = front.first_live if stale is None else front.first_open
    older = take_turn(_cut(wanted, 0, first_kept_for_live), attempts, now, most)
    is_alone = windows.runs_at_once == 1
    goes_first = is_alone and bool(older.windows) and backlog_goes_first(attempts, now)
    what, count = "older" if stale is None else "stale", sum(map(len, wanted))
    of_which = f"of {count} " + ("windows that closed" if stale is None else "stale windows again")
    if stale is None and live.windows and not goes_first:
        return _request(live, windowing, of_which)
    if older.windows and not is_alone and working.backlog >= windows.runs_at_once - 1:
        return Request((), f"{what} windows wait: {working.sentence()}, and the last place is for live windows")
    if older.windows and is_alone and not goes_first:
        if live.windows:
            return Request((), f"{count} {what} windows wait, because live windows come first")
        if not backlog_may_begin(attempts, front):
            return Request((), f"{count} {what} windows wait, because the next window is about to close")
    return _request(older, windowing, of_which, is_backlog=True, besides=live)


def front_of(lake: LakeResource, watermark: datetime | None, now: datetime) -> Front | None:
    """Where the watermark is, not ahead of the clock; None if there is none."""
    return None if watermark is None else Front(lake.settings.windowing, min(watermark, now), now)


def due_now(lake: LakeResource, front: Front | None) -> list[range] | None:
    """The closed windows that are not computed, as stretches, the newest first; None if no window with a heartbeat, or
    after one, is closed. Raises LakeError."""
    if front is None:
        return None
    done = lake.kept.get((CHOICE, "nothing_due"), NothingDue)
    if done.holds(front.first_open, front.at):
        return []
    closed, index = lake.kept_windows().closed(front.watermark), lake.window_index(CHOICE).update()
    if index.held.least is None or index.held.least >= closed.stop:
        return None
    due = list(index.due(closed))
    done.note(front.first_open, front.at, is_due=bool(due))
    return due


@dataclass
class NothingDue:
    """What a process knew when no window was due, such as which windows were closed. While it knows nothing else, it
    looks again only every LOOK_EVERY: in a bucket, each look costs half a dozen calls."""

    _found: tuple[Hashable, datetime] | None = None

    def note(self, known: Hashable, now: datetime, *, is_due: bool) -> None:
        """Note whether a look found a window that is due."""
        self._found = None if is_due else (known, now)

    def holds(self, known: Hashable, now: datetime) -> bool:
        """Whether no window is taken to be due, without a look."""
        return self._found is not None and self._found[0] == known and now - self._found[1] < LOOK_EVERY


def _closed(windows: Iterable[Window], front: Front) -> list[range]:
    """Closed windows, as stretches, the newest first."""
    numbers = (front.windowing.number_of(window.start) for window in windows)
    return list(Spans(*(range(number, number + 1) for number in numbers)).within(range(front.first_open)))


def _cut(stretches: Iterable[range], low: int, high: int) -> Iterator[range]:
    """The parts of stretches, the newest first, in `[low, high)`."""
    for stretch in takewhile(lambda stretch: stretch.stop > low, stretches):
        if stretch.start < high:
            yield range(max(low, stretch.start), min(high, stretch.stop))


def _request(
    turn: Turn, windowing: Windowing, of_which: str, *, is_backlog: bool = False, besides: Turn | None = None
) -> Request:
    resting = [*(besides.resting if besides else ()), *turn.resting]
    rest = Turn((), resting).sentence(windowing)
    if not turn.windows:
        return Request((), rest)
    windows = [windowing.numbered(number) for number in turn.windows]
    first = min(windows)
    sentence = f"computing {len(windows)} {of_which}, from {first} on"
    return Request(windows if is_backlog else sorted(windows), f"{sentence}; {rest}" if rest else sentence, is_backlog)


def pause_of_windows(runs: Runs, working: AtWork, now: datetime) -> str | None:
    """Why no run over windows may be requested now: as many as the settings allow are at work, or the last ones failed
    too recently. None if one may."""
    if len(working.run_ids) >= runs.settings.windows.runs_at_once:
        return working.sentence()
    return pause_after_failures(runs, COMPUTE_WINDOWS, now) or pause_after_failures(runs, COMPUTE_BACKLOG, now)


def pause_of(
    runs: Runs,
    job_name: str,
    now: datetime,
    does: str = "is computing windows",
    longest: timedelta = LONGEST_PAUSE,
    counts: Callable[[dg.RunRecord], bool] = lambda _: True,
) -> str | None:
    """Why no run may be requested now: one is under way (`does` says what it does), or the last ones failed too
    recently. None if one may. `counts` says whether a failure counts; one that does not ends the count, as a success
    does. Runs whose process has died are reported as failed first."""
    if at_it := report_dead(runs, job_name, now):
        return f"run {at_it[0].dagster_run.run_id[:8]} {does}"
    return pause_after_failures(runs, job_name, now, longest, counts)


def pause_after_failures(
    runs: Runs,
    job_name: str,
    now: datetime,
    longest: timedelta = LONGEST_PAUSE,
    counts: Callable[[dg.RunRecord], bool] = lambda _: True,
) -> str | None:
    """Why the next run waits after failures in a row; None if it does not."""
    latest = runs.newest(job_name, FAILURES_COUNTED)
    failed = takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, latest)
    failures = list(takewhile(counts, failed))
    if not failures:
        return None
    pause = min(FIRST_PAUSE * 2 ** (len(failures) - 1), longest)
    if now - ended_at(failures[0]) < pause:
        return f"the last {len(failures)} runs failed; the next is tried {pause} after the last"
    return None
