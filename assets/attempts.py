"""The windows of runs, as Dagster keeps them: of those that have ended, and of those at work."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from tidemark.assets.lost_runs import report_dead
from tidemark.assets.runs import Runs
from tidemark.assets.turns import Attempt
from tidemark.pipeline.services.dagster_names import COMPUTE_BACKLOG, COMPUTE_WINDOWS, RANGE_END, RANGE_START, TRIED
from tidemark.pipeline.settings_sections import WindowSettings
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Window, Windowing

RUNS_LOOKED_AT = 100
"""Newest ended runs of each job that tell which windows keep failing."""

ONE_WINDOW = "dagster/partition"
"""The tag of a run over one partition, as the UI starts it."""

TO = ".."
"""Stands between the first and the last key of a stretch in the config of a backlog run."""


def stretch_texts(windows: Iterable[Window]) -> Iterator[str]:
    """Windows, the newest first, as keys; neighbours together, as `first..last`."""
    stretch: list[Window] = []
    for window in windows:
        if stretch and stretch[-1].start != window.end:
            yield _stretch_text(stretch)
            stretch = []
        stretch.append(window)
    if stretch:
        yield _stretch_text(stretch)


def stretch_named(text: str, windowing: Windowing) -> range:
    """The numbers of the windows of such a text. Raises ValueError."""
    first, _, last = text.partition(TO)
    numbers = [windowing.number_of(windowing.named(key).start) for key in (first, last or first)]
    return range(numbers[0], numbers[1] + 1)


def _stretch_text(newest_first: Sequence[Window]) -> str:
    first, last = newest_first[-1].key, newest_first[0].key
    return first if first == last else f"{first}{TO}{last}"


def attempts_of(runs: Runs, windowing: Windowing) -> list[Attempt]:
    """The newest runs over windows that have succeeded or failed, newest first."""
    found = []
    for job_name in (COMPUTE_WINDOWS, COMPUTE_BACKLOG):
        statuses = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
        for record in runs.newest(job_name, RUNS_LOOKED_AT, statuses):
            run, is_backlog = record.dagster_run, job_name == COMPUTE_BACKLOG
            failed = run.status is dg.DagsterRunStatus.FAILURE
            windows = _windows_of(run, windowing, is_backlog=is_backlog, failed=failed)
            if windows is None:
                continue
            ended_then = ended_at(record)
            began = datetime.fromtimestamp(record.start_time, UTC) if record.start_time else ended_then
            found.append(Attempt(windows, failed, began, ended_then, is_backlog))
    return sorted(found, key=lambda attempt: attempt.ended_at, reverse=True)


def _windows_of(run: dg.DagsterRun, windowing: Windowing, *, is_backlog: bool, failed: bool) -> Spans | None:
    """The windows of a run; None if they have another length, or if it was started by hand."""
    try:
        return _backlog_tried(run, windowing, failed=failed) if is_backlog else _range_of(run, windowing)
    except (ValueError, KeyError, TypeError, StopIteration):
        return None


def _range_of(run: dg.DagsterRun, windowing: Windowing) -> Spans:
    """The windows of a run over a range."""
    first = run.tags.get(RANGE_START) or run.tags[ONE_WINDOW]
    return Spans(stretch_named(f"{first}{TO}{run.tags.get(RANGE_END) or first}", windowing))


def _backlog_tried(run: dg.DagsterRun, windowing: Windowing, *, failed: bool) -> Spans:
    """The windows whose computation succeeded, or failed. A backlog run notes which part it has reached."""
    config: Any = run.run_config
    the_op = next(iter(config["ops"].values()))
    windows = Spans(*(stretch_named(text, windowing) for text in the_op["config"]["windows"]))
    if TRIED not in run.tags:  # it was killed before its first part, or has ended with nothing to do
        return windows
    part = stretch_named(run.tags[TRIED], windowing)
    reached = part if failed else range(part.start, windowing.number_of(datetime.max.replace(tzinfo=UTC)))
    return Spans(*windows.within(reached))


def ended_at(record: dg.RunRecord) -> datetime:
    """When a run ended; if Dagster has not noted that, when it was created."""
    return datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)


@dataclass(frozen=True, slots=True)
class AtWork:
    """The runs over windows that are queued or under way, and the windows that no further run should take: theirs, and
    those that share input with them. `backlog` is how many of these runs are over older windows."""

    run_ids: Sequence[str] = ()
    backlog: int = 0
    taken: Spans = field(default_factory=Spans)

    def leaves(self, stretches: Iterable[range]) -> Iterator[range]:
        """What is left of stretches of windows, the newest first."""
        for stretch in stretches:
            yield from Spans(stretch).without(self.taken, stretch)

    def sentence(self) -> str:
        """Which runs these are."""
        first, *more = self.run_ids
        return f"run {first[:8]} is computing windows" + (f", and {len(more)} more are" if more else "")


def at_work(runs: Runs, windows: WindowSettings, windowing: Windowing, now: datetime) -> AtWork:
    """The unfinished runs over windows. Those whose process has died are reported as failed first."""
    ids, backlog, taken = list[str](), 0, Spans()
    reach = -(-windows.lookback // windows.length)
    everything = range(windowing.number_of(windowing.first), windowing.number_of(now) + 1)
    for job_name in (COMPUTE_WINDOWS, COMPUTE_BACKLOG):
        for record in report_dead(runs, job_name, now):
            run, is_backlog = record.dagster_run, job_name == COMPUTE_BACKLOG
            ids.append(run.run_id)
            backlog += is_backlog
            theirs = _windows_of(run, windowing, is_backlog=is_backlog, failed=True)
            # One whose windows are not known may compute any.
            for stretch in [everything] if theirs is None else theirs.within(everything):
                taken.add(range(stretch.start - reach, stretch.stop + reach))
    return AtWork(ids, backlog, taken)
