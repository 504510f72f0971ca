"""The runs of this pipeline's jobs. Others may share the instance, with jobs of the same names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG

from tidemark.pipeline.services.dagster_names import PIPELINE, name_of
from tidemark.pipeline.settings import Settings

MAX_RUNTIME_SECONDS = 7200
"""How long a run may take, where the instance monitors runs. Ours does in any case: `max_runtime_seconds`."""


def tags_of(settings: Settings) -> dict[str, str]:
    """The tags of this pipeline's jobs, and so of their runs: a lake is one pipeline's."""
    return {**_mark_of(settings), MAX_RUNTIME_SECONDS_TAG: str(MAX_RUNTIME_SECONDS)}


def _mark_of(settings: Settings) -> dict[str, str]:
    """The tag by which runs are found."""
    return {PIPELINE: settings.lake.uri}


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs in `instance` of the jobs of the pipeline with these settings."""

    instance: dg.DagsterInstance
    settings: Settings

    def newest(
        self, job_name: str, limit: int, statuses: Sequence[dg.DagsterRunStatus] | None = None
    ) -> Sequence[dg.RunRecord]:
        """The newest runs of a job, newest first: all, or those with one of the statuses."""
        job, tags = name_of(self.settings, job_name), _mark_of(self.settings)
        wanted = dg.RunsFilter(job_name=job, statuses=statuses, tags=tags)
        return self.instance.get_run_records(wanted, limit=limit)

    def updated(
        self, statuses: Sequence[dg.DagsterRunStatus], limit: int, after: datetime | None = None
    ) -> Sequence[dg.RunRecord]:
        """Runs whatever their job: the first that changed after a moment, in that order; without one, the last."""
        wanted = dg.RunsFilter(statuses=statuses, updated_after=after, tags=_mark_of(self.settings))
        return self.instance.get_run_records(
            wanted, limit=limit, order_by="update_timestamp", ascending=after is not None
        )

    def finished_before(self, moment: datetime, at_most: int) -> Iterator[str]:
        """The ids of runs that finished before a moment, whatever their job."""
        wanted = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=moment, tags=_mark_of(self.settings))
        return (run.run_id for run in self.instance.get_runs(wanted, limit=at_most))
