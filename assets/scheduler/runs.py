"""The runs of this pipeline's jobs, and the windows that they compute. Other pipelines may share the instance, with
jobs of the same names."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from tidemark.assets.scheduler.turns import Attempt, Attempts
from tidemark.assets.window_names import stretches_asked
from tidemark.pipeline.orchestrator.names import (
    BACKLOG,
    COMPUTE_WINDOWS,
    PIPELINE,
    name_of,
    pipeline_tags,
)
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Spans, Windowing

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in FINISHED)
"""Includes statuses that a later Dagster adds, such as SUSPENDED."""

RUNS_LOOKED_AT = 200
"""Newest ended runs that are read to find windows that keep failing."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of this pipeline's jobs in `instance`."""

    instance: dg.DagsterInstance
    settings: Settings

    def newest(
        self, job_name: str, limit: int, statuses: Sequence[dg.DagsterRunStatus] | None = None
    ) -> Sequence[dg.RunRecord]:
        """Return the newest runs of a job, newest first; with `statuses`, only those with one of them."""
        wanted = self._ours(job_name=name_of(self.settings, job_name), statuses=statuses)
        return self.instance.get_run_records(wanted, limit=limit)

    def updated(
        self, statuses: Sequence[dg.DagsterRunStatus], limit: int, after: datetime | None = None
    ) -> Sequence[dg.RunRecord]:
        """Return runs of any job: the first that changed after a moment, oldest first; without a moment, the last that
        changed, newest first."""
        wanted, order = self._ours(statuses=statuses, updated_after=after), "update_timestamp"
        return self.instance.get_run_records(wanted, limit, order, ascending=after is not None)

    def finished_before(self, moment: datetime, at_most: int) -> Sequence[str]:
        """Return the ids of runs of any job that finished before a moment."""
        return self.instance.get_run_ids(self._ours(statuses=FINISHED, updated_before=moment), limit=at_most)

    def _ours(self, **more: Any) -> dg.RunsFilter:
        return dg.RunsFilter(tags={PIPELINE: pipeline_tags(self.settings.lake.uri)}, **more)


def ended_attempts(runs: Runs, windowing: Windowing) -> Attempts:
    """Return the newest COMPUTE_WINDOWS runs that succeeded or failed, newest first."""
    statuses = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    records = runs.newest(COMPUTE_WINDOWS, RUNS_LOOKED_AT, statuses)
    found = (attempt_of(record, windowing, ended_at(record)) for record in records)
    return sorted(found, key=lambda attempt: attempt.ended_at, reverse=True)


def attempt_of(record: dg.RunRecord, windowing: Windowing, until: datetime) -> Attempt:
    """Read a run over windows. `until` is when it ended, or the current time. It has no windows if these cannot be
    read, as when windows had another length."""
    run, windows = record.dagster_run, Spans()
    config: Any = run.run_config
    with suppress(LookupError, ValueError, TypeError, AttributeError):  # or its config was written by hand
        texts = [text for op in config.get("ops", {}).values() for text in op["config"]["windows"]]
        windows = Spans(*stretches_asked(texts, run.tags, windowing))
    began = datetime.fromtimestamp(record.start_time, UTC) if record.start_time else until
    failed = run.status is dg.DagsterRunStatus.FAILURE
    return Attempt(windows, failed, began, until, BACKLOG in run.tags, run.run_id)


def ended_at(record: dg.RunRecord) -> datetime:
    """Return when a run ended; if Dagster has not recorded that, when it was created."""
    return datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)
