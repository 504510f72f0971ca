"""Runs whose readers pull instead of the ticks: which one does now, and what it says when executors cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import dagster as dg

from tidemark.assets.attempts import ended_at
from tidemark.assets.events import failing_run
from tidemark.assets.lost_runs import beating, why_dead
from tidemark.assets.runs import Runs
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.resources.lake import LakeResource

WHY_NOT = "tidemark/why_not"
"""The tag of a run that pulled nothing, since executors lack tidemark: what to do."""

UNABLE_PAUSE = timedelta(minutes=10)
"""How long ticks alone land after such a run, before another one looks: somebody has to install something."""

MOST_OF_A_TAG = 1000
"""Characters of an error in a tag."""

OVERTIME = timedelta(minutes=5)
"""Ticks pull again when a run has gone on for this much longer than it may: it may hang."""


@contextmanager
def readers_at_work(context: dg.OpExecutionContext, lake: LakeResource, clock: Clock) -> Iterator[None]:
    """What surrounds the readers of a run: it says that it is at work. A failure is noted in the lake, and the run has
    a tag if executors cannot run tidemark, which Dagster's retries do not mend."""
    noting = lake.whole().failed_runs().noting(context.run_id, (), clock, context.job_name)
    with failing_run(ExecutorsUnable), _noting_unable(context), beating(context), noting:
        yield


@contextmanager
def _noting_unable(context: dg.OpExecutionContext) -> Iterator[None]:
    try:
        yield
    except ExecutorsUnable as error:
        context.instance.add_run_tags(context.run_id, {WHY_NOT: str(error)[:MOST_OF_A_TAG]})
        raise


def unable_pause(runs: Runs, job_name: str, now: datetime) -> str | None:
    """Why no run of a job is requested, since executors could not run the last one; None if one may be."""
    for record in runs.newest(job_name, 1):
        why = record.dagster_run.tags.get(WHY_NOT)
        if why is not None and now - ended_at(record) < UNABLE_PAUSE:
            return (
                f"ticks land, since {why}; another run looks {format_duration(UNABLE_PAUSE)} after "
                "the last; start one by hand to try at once"
            )
    return None


def reading_run(runs: Runs, job_name: str, now: datetime, at_most: timedelta, tag: str | None = None) -> str | None:
    """The id of a job's run that reads the subscriptions now: it is at work, not for longer than its time and OVERTIME,
    and has this tag."""
    at_it = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    for record in runs.newest(job_name, 1, at_it):
        began = record.start_time or record.create_timestamp.timestamp()
        is_on_time = now.timestamp() - began < (at_most + OVERTIME).total_seconds()
        if is_on_time and (not tag or tag in record.dagster_run.tags) and why_dead(runs.instance, record, now) is None:
            return record.dagster_run.run_id
    return None
