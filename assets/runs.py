"""The runs of this pipeline's jobs. Others may share the instance, with jobs of the same names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG

from tidemark.pipeline.services.dagster_names import PIPELINE
from tidemark.pipeline.settings import Settings

MAX_RUNTIME_SECONDS = 7200
"""How long a run may take, where the instance monitors runs. Ours does in any case: `max_runtime_seconds`."""


def tags_of(settings: Settings) -> dict[str, str]:
    """The tags of this pipeline's jobs, and so of their runs: a lake is one pipeline's."""
    return {PIPELINE: settings.lake.uri, MAX_RUNTIME_SECONDS_TAG: str(MAX_RUNTIME_SECONDS)}


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs in `instance` whose jobs have these tags."""

    instance: dg.DagsterInstance
    tags: dict[str, str]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, settings: Settings) -> Self:
        """Those of the pipeline with these settings."""
        return cls(instance, {PIPELINE: settings.lake.uri})

    def newest(
        self, job_name: str, limit: int, statuses: Sequence[dg.DagsterRunStatus] | None = None
    ) -> Sequence[dg.RunRecord]:
        """The newest runs of a job, newest first: all, or those with one of the statuses."""
        wanted = dg.RunsFilter(job_name=job_name, statuses=statuses, tags=self.tags)
        return self.instance.get_run_records(wanted, limit=limit)

    def finished_before(self, moment: datetime, at_most: int) -> Iterator[str]:
        """The ids of runs that finished before a moment, whatever their job."""
        wanted = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=moment, tags=self.tags)
        return (run.run_id for run in self.instance.get_runs(wanted, limit=at_most))
