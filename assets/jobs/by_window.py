"""Jobs and assets over windows: the windows that a run is asked for, wherever they lie, and what Dagster is told."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import dagster as dg

from tidemark.assets.events import failing_run
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.lost_runs import Context, beating
from tidemark.assets.scheduler.runs import (
    WindowsConfig,
    job_of,
    say_windows,
    stretch_texts,
    stretches_asked,
    windows_of,
)
from tidemark.pipeline.compute.replacement import refuse_open
from tidemark.pipeline.errors import ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.orchestrator.names import WINDOWS, op_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources import private
from tidemark.resources.keys import LAKE, SPARK
from tidemark.resources.lake import LakeResource

LASTING = (ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed)
"""Errors that a retry of the run does not fix."""


Event: TypeAlias = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
Compute: TypeAlias = Callable[[Context, Sequence[Window]], Iterator[Event]]


def windows_job(
    settings: Settings, name: str, partitions: Partitions, assets: Sequence[dg.AssetKey], compute: Compute, about: str
) -> dg.JobDefinition:
    """A job over the windows that its config or its tag names. `compute` computes them for these `assets`, commits
    them, and says what Dagster is to know."""

    @job_of(settings, name, op_of(name), about, LAKE, SPARK)
    def job(context: dg.OpExecutionContext, config: WindowsConfig) -> Iterator[Event | dg.Output[None]]:
        """Computes windows and commits them at once. The sensors ask for few enough that live windows need not wait."""
        with failing_run(*LASTING, ValueError), beating(context):
            stretches = stretches_asked(config.windows, context.run.tags, partitions.windowing)
            windows = windows_of(stretches, partitions.windowing)
            if not windows:
                raise ValueError(f"no window is named, neither in the op's config nor in the tag {WINDOWS}")
            say_windows(context, windows)
            for asset in assets:
                _plan(context, op_of(name), asset, partitions.holding(windows))
            yield from compute(context, windows)
        yield dg.Output(None, metadata={"windows": len(windows)})

    return job


def _plan(context: dg.OpExecutionContext, op: str, asset: dg.AssetKey, partitions: Iterable[str]) -> None:
    """Have the UI show these partitions as in progress, and as failed if the run fails, as it does for an asset's own
    runs. Nothing where this Dagster has another way to say so."""
    if private.why_missing(("AssetMaterializationPlannedData",)):
        return
    for partition in partitions:
        planned = private.AssetMaterializationPlannedData(asset, partition=partition)
        event = dg.DagsterEvent.build_asset_materialization_planned_event(context.job_name, op, planned)
        context.instance.report_dagster_event(event, context.run_id)


def materialized(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, events: Iterable[Event]
) -> dg.MaterializeResult[None]:
    """The result of an asset's own run, from what a job would have told: Dagster itself reports the run's
    partitions."""
    checks = []
    for event in events:
        if isinstance(event, dg.AssetCheckEvaluation):
            checks.append(dg.AssetCheckResult(**{name: getattr(event, name) for name in dg.AssetCheckResult._fields}))
        elif event.asset_key == asset:
            context.add_asset_metadata(event.metadata, asset_key=asset, partition_key=event.partition)
        else:
            context.log_event(event)
    return dg.MaterializeResult(check_results=checks)


def windows_of_partitions(
    context: dg.AssetExecutionContext,
    lake: LakeResource,
    partitions: Partitions,
    index: WindowIndex,
    further: timedelta = timedelta(0),
) -> list[Window]:
    """What an asset's own run computes: the windows of its partitions that hold a heartbeat, look back at one, or are
    computed. Where some are no longer kept, the others; a table may look back `further`. Raises WindowNotClosed unless
    all of the partitions are over, and LakeError."""
    windowing, asked = partitions.windowing, partitions.windows_in(context.partition_keys)
    refuse_open([windowing.numbered(bounds.stop - 1) for bounds in asked], lake.watermark())
    index.update()
    found = [
        stretch for bounds in asked for spans in (index.reached, index.computed) for stretch in spans.within(bounds)
    ]
    windows, since = windows_of(found, windowing), lake.kept_windows().since()
    kept = [window for window in windows if since is None or window.start >= since + further] or windows
    say_windows(context, kept)
    return kept


def reports(
    asset: dg.AssetKey,
    partitions: Partitions,
    windows: Iterable[Window],
    watermark: datetime | None,
    index: WindowIndex,
    said: Callable[[Sequence[Window]], dict[str, Any]],
    tags: Mapping[str, str] | None = None,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """What Dagster is told of computed windows, by the partition that holds them. It is materialized once it is over
    and all of its windows that hold a heartbeat are computed, so that what is downstream begins with the whole of it.
    Before, its windows are observed."""
    for key, held in partitions.holding(windows).items():
        (bounds,) = partitions.windows_in([key])
        is_over = watermark is not None and partitions.windowing.numbered(bounds.stop - 1).is_closed_at(watermark)
        if len(bounds) > 1 and is_over:
            index.update()
            is_over = next(index.held.without(index.computed, bounds), None) is None
        event = dg.AssetMaterialization if is_over else dg.AssetObservation
        yield event(asset, partition=key, metadata={**which(held), **said(held)}, tags=tags)


def which(windows: Sequence[Window]) -> dict[str, Any]:
    """How many windows a run has computed in a partition, and which."""
    return {"windows": len(windows), "windows_computed": ", ".join(stretch_texts(windows))}
