"""The windows of runs, as Dagster keeps them: of those that have ended, and of those at work."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from tidemark.assets.lost_runs import report_dead
from tidemark.assets.runs import Runs
from tidemark.assets.turns import Attempt
from tidemark.pipeline.services.dagster_names import BACKLOG, COMPUTE_WINDOWS, RANGE_END, RANGE_START
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import Window, Windowing, runs_of_neighbours

RUNS_LOOKED_AT = 200
"""Newest ended runs that tell which windows keep failing."""

TO = ".."
"""Stands between the first and the last key of a stretch in the config of a run."""


def stretch_texts(windows: Iterable[Window]) -> list[str]:
    """Windows as keys, in order; neighbours together, as `first..last`."""
    ends = ((stretch[0].key, stretch[-1].key) for stretch in runs_of_neighbours(windows))
    return [first if first == last else f"{first}{TO}{last}" for first, last in ends]


def stretch_named(text: str, windowing: Windowing) -> range:
    """The numbers of the windows of such a text. Raises ValueError."""
    first, _, last = text.partition(TO)
    numbers = [windowing.number_of(windowing.named(key).start) for key in (first, last or first)]
    return range(numbers[0], numbers[1] + 1)


def stretches_asked(texts: Iterable[str], tags: Mapping[str, str], windowing: Windowing) -> list[range]:
    """The windows that a run of COMPUTE_WINDOWS is to compute: those of its config, or else the range in its tags.
    Raises ValueError."""
    first = tags.get(RANGE_START)
    in_tags = [] if first is None else [f"{first}{TO}{tags.get(RANGE_END, first)}"]
    return [stretch_named(text, windowing) for text in list(texts) or in_tags]


def at_work(runs: Runs, windowing: Windowing, now: datetime) -> list[Attempt]:
    """The unfinished runs, the newest first. Those whose process has died are reported as failed before."""
    return [_attempt(record, windowing, now) for record in report_dead(runs, COMPUTE_WINDOWS, now)]


def ended_attempts(runs: Runs, windowing: Windowing) -> Sequence[Attempt]:
    """The newest runs that have succeeded or failed, the newest first."""
    statuses = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    records = runs.newest(COMPUTE_WINDOWS, RUNS_LOOKED_AT, statuses)
    found = (_attempt(record, windowing, ended_at(record)) for record in records)
    return sorted(found, key=lambda attempt: attempt.ended_at, reverse=True)


def _attempt(record: dg.RunRecord, windowing: Windowing, until: datetime) -> Attempt:
    """A run, without windows if these have another length than now."""
    run, windows = record.dagster_run, Spans()
    config: Any = run.run_config
    with suppress(LookupError, ValueError, TypeError, AttributeError):  # or if somebody wrote its config by hand
        texts = [text for op in config.get("ops", {}).values() for text in op["config"]["windows"]]
        windows = Spans(*stretches_asked(texts, run.tags, windowing))
    began = datetime.fromtimestamp(record.start_time, UTC) if record.start_time else until
    failed = run.status is dg.DagsterRunStatus.FAILURE
    return Attempt(windows, failed, began, until, BACKLOG in run.tags, run.run_id)


def ended_at(record: dg.RunRecord) -> datetime:
    """When a run ended; if Dagster has not noted that, when it was created."""
    return datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)
