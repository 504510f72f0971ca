"""The wrapper of all jobs. It adds tags, runs a single op in the run's process, logs signs of life and handles
errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from inspect import getdoc
from threading import Event, Thread
from typing import Any, TypeAlias

import dagster as dg
from structlog.contextvars import bound_contextvars

from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.orchestrator.names import PIPELINE, TICK, name_of, pipeline_tag
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import keys_of

MAX_RUNTIME_SECONDS = 7200
"""Time limit for a run. It applies only if the Dagster instance monitors runs, as tidemark's own instance does
(`max_runtime_seconds`)."""

BEAT = timedelta(minutes=1)
"""Interval between two signs of life in a run's log."""

RETRY_ON_FAILURE = "dagster/retry_on_asset_or_op_failure"
"""A tag that Dagster documents but does not export as a constant. If `false`, Dagster retries a run only if the run's
process was lost, not if its op failed."""

Context: TypeAlias = dg.OpExecutionContext | dg.AssetExecutionContext


def tags_of(settings: Settings) -> dict[str, str]:
    """Return the tags of this pipeline's jobs and their runs: the pipeline's identity (derived from the lake's
    address), the time limit of a run, and a tag that turns off Dagster's retries, because the sensors retry."""
    return {
        PIPELINE: pipeline_tag(settings.lake.uri),
        dg.MAX_RUNTIME_SECONDS_TAG: str(MAX_RUNTIME_SECONDS),
        RETRY_ON_FAILURE: "false",
    }


def job_of(
    settings: Settings, job: str, op: str, *resources: str, about: str = "", lasting: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[..., Iterator[Any]]], dg.JobDefinition]:
    """Return a decorator that turns a function into a job with a single op. The function's docstring describes the op
    and, unless `about` is given, the job. The op runs the function inside `working`, to which `lasting` is passed."""

    def decorator(compute: Callable[..., Iterator[Any]]) -> dg.JobDefinition:
        @wraps(compute)
        def run(context: dg.OpExecutionContext, **config: Any) -> Iterator[Any]:
            with working(context, *lasting):
                yield from compute(context, **config)

        only = dg.op(
            name=name_of(settings, op), out=dg.Out(dg.Nothing), required_resource_keys=keys_of(settings, *resources)
        )(run)
        described = about or getdoc(compute)
        graph = dg.GraphDefinition(name=name_of(settings, job), description=described, node_defs=[only])
        return graph.to_job(executor_def=dg.in_process_executor, tags=tags_of(settings))

    return decorator


def schedule_of(settings: Settings, name: str, cron: str, job: Any) -> dg.ScheduleDefinition:
    """Define a schedule with a job's description. The schedule is on by default, and its times are in UTC."""
    return dg.ScheduleDefinition(
        name=name_of(settings, name),
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=job.description,
    )


@contextmanager
def working(context: Context, *lasting: type[Exception]) -> Iterator[None]:
    """Log a sign of life every BEAT during the block, and attach the run's ids to every line that the block logs.
    Report a TidemarkError, or an error of a type in `lasting`, as the run's failure. An error of a type in `lasting` is
    not retried."""
    purposeful: tuple[type[Exception], ...] = (TidemarkError, *lasting)
    ended = Event()

    def beat() -> None:
        while not ended.wait(BEAT.total_seconds()):
            with suppress(Exception):  # if the storage does not answer, the next beat may reach it
                context.instance.report_engine_event("still at work", context.run)

    Thread(target=beat, name="beat", daemon=True).start()
    try:
        with bound_contextvars(run_id=context.run.run_id, tick=context.run.tags.get(TICK, "")):
            yield
    except purposeful as error:
        raise dg.Failure(description=str(error), allow_retries=not isinstance(error, lasting)) from error
    finally:
        ended.set()
