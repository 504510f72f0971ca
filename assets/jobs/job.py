"""The wrapper of all jobs: tags, one op in the run's own process, and what surrounds its work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import dagster as dg

from tidemark.assets.scheduler.lost_runs import Context, beating
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.orchestrator.names import PIPELINE, name_of, pipeline_tag
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import keys_of

MAX_RUNTIME_SECONDS = 7200
"""The longest that a run may take, where the instance monitors runs. Ours does in any case: `max_runtime_seconds`."""


def tags_of(settings: Settings) -> dict[str, str]:
    """The tags of this pipeline's jobs, and so of their runs: a lake belongs to one pipeline."""
    return {PIPELINE: pipeline_tag(settings.lake.uri), dg.MAX_RUNTIME_SECONDS_TAG: str(MAX_RUNTIME_SECONDS)}


def job_of(
    settings: Settings, job: str, op: str, description: str, *resources: str, lasting: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[..., Iterator[Any]]], dg.JobDefinition]:
    """The decorator that makes a job of one op, whose docstring describes it. It runs `working`."""

    def decorator(compute: Callable[..., Iterator[Any]]) -> dg.JobDefinition:
        @wraps(compute)
        def run(context: dg.OpExecutionContext, **config: Any) -> Iterator[Any]:
            with working(context, *lasting):
                yield from compute(context, **config)

        only = dg.op(
            name=name_of(settings, op), out=dg.Out(dg.Nothing), required_resource_keys=keys_of(settings, *resources)
        )(run)
        graph = dg.GraphDefinition(name=name_of(settings, job), description=description, node_defs=[only])
        return graph.to_job(executor_def=dg.in_process_executor, tags=tags_of(settings))

    return decorator


@contextmanager
def working(context: Context, *lasting: type[Exception]) -> Iterator[None]:
    """Have a run say that it is at work, and report an error that is raised on purpose as its failure; without a retry
    if it is one of `lasting`."""
    purposeful: tuple[type[Exception], ...] = (TidemarkError, *lasting)
    with beating(context):
        try:
            yield
        except purposeful as error:
            raise dg.Failure(description=str(error), allow_retries=not isinstance(error, lasting)) from error
