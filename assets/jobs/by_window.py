"""Jobs and assets over windows: the windows that a run is asked for, wherever they lie, and what Dagster is told."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import dagster as dg
from pydantic import Field

from tidemark.assets.catalog import ASSETS, Columns, key_of, shown, within
from tidemark.assets.jobs.job import Context, job_of, working
from tidemark.assets.partitions import Partitions
from tidemark.assets.window_names import stretch_texts, stretches_asked, windows_of, windows_tag
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.replacement import refuse_open
from tidemark.pipeline.errors import ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.orchestrator.names import PIPELINE, WINDOWS, op_of, pipeline_tag
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources import private
from tidemark.resources.keys import LAKE, SPARK, keys_of, lake_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource

LASTING = (ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed, ValueError)
"""Errors that a retry of the run does not fix."""

Event: TypeAlias = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
Compute: TypeAlias = Callable[[Context, Sequence[Window]], Iterator[Event]]


class WindowsConfig(dg.Config):
    """The windows to compute: keys such as 2026-11-21T05-20Z, and stretches such as
    2026-11-21T05-20Z..2026-11-21T06-10Z. Without any: those of the run's tag tidemark/windows."""

    windows: list[str] = Field(default_factory=list)


def windows_job(
    settings: Settings, name: str, partitions: Partitions, assets: Sequence[dg.AssetKey], compute: Compute, about: str
) -> dg.JobDefinition:
    """A job over the windows that its config or its tag names. `compute` computes them for these `assets`, commits
    them, and yields what Dagster is told."""

    @job_of(settings, name, op_of(name), about, LAKE, SPARK, lasting=LASTING)
    def job(context: dg.OpExecutionContext, config: WindowsConfig) -> Iterator[Event | dg.Output[None]]:
        """Computes windows and commits them at once. The sensors ask for few enough that live windows need not wait."""
        stretches = stretches_asked(config.windows, context.run.tags, partitions.windowing)
        windows = windows_of(stretches, partitions.windowing)
        if not windows:
            raise ValueError(f"no window is named, neither in the op's config nor in the tag {WINDOWS}")
        _tag(context, windows)
        for asset in assets:
            _plan(context, op_of(name), asset, partitions.holding(windows))
        yield from compute(context, windows)
        yield dg.Output(None, metadata={"windows": len(windows)})

    return job


def asset_by_window(
    settings: Settings,
    asset: dg.AssetKey,
    partitions: Partitions,
    compute: Compute,
    index: Callable[[LakeResource], WindowIndex],
    *resources: str,
    deps: Sequence[dg.AssetKey],
    columns: Columns | None = None,
    folder: str = "",
    further: timedelta = timedelta(0),
    **more: Any,
) -> dg.AssetsDefinition:
    """An asset that a run computes by window, in a folder of the lake, by default that of its name. Its own run (of the
    UI, or a backfill) does what a job does, over the windows of its partitions."""
    key = key_of(settings, asset)

    decorator: Callable[..., dg.AssetsDefinition] = dg.asset(
        key=key,
        deps=[key_of(settings, dep) for dep in deps],
        partitions_def=partitions.definition(),
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"pyspark", "deltalake"},
        required_resource_keys=keys_of(settings, *resources),
        **shown(settings, within(settings, folder or asset.path[-1]), columns),
        **more,
    )

    def computed(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        lake = lake_of(context, settings)
        ours = {key, *(key_of(settings, one) for one in ASSETS)}
        if context.run.asset_selection and context.run.asset_selection <= ours:  # else it is another's run as well
            context.instance.add_run_tags(context.run.run_id, {PIPELINE: pipeline_tag(settings.lake.uri)})
        with working(context, *LASTING):
            windows = _windows_of_partitions(context, lake, partitions, index(lake), further)
            yield _materialized(context, key, compute(context, windows))

    return decorator(computed)


def batch_parts(
    lake: LakeResource,
    spark: SparkResource,
    run: str,
    windows: Sequence[Window],
    watermark: datetime | None,
    further: timedelta = timedelta(0),
) -> dict[str, Any]:
    """The arguments of any `WindowBatch` over these windows, whose input may reach `further` back. Raises WindowExpired
    and WindowNotClosed, before Spark is used."""

    def refuse_expired(windows: Sequence[Window]) -> None:
        kept.refuse_expired(windows, further=further)

    kept = lake.kept_windows()
    refuse_expired(windows)
    refuse_open(windows, watermark)
    return {
        "spark": spark.session(),
        "heartbeats": lake.heartbeats("run"),
        "watermark": watermark,
        "run": run,
        "clock": SystemClock(),
        "refuse_expired": refuse_expired,
    }


def reports(
    asset: dg.AssetKey,
    partitions: Partitions,
    windows: Iterable[Window],
    watermark: datetime | None,
    index: WindowIndex,
    said: Callable[[Sequence[Window]], dict[str, Any]],
    tags: Mapping[str, str] | None = None,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """The events of computed windows, by the partition that holds them. It is materialized once it is over and all of
    its windows that hold a heartbeat are computed, so that what is downstream begins with the whole of it. Before, its
    windows are observed."""
    for key, held in partitions.holding(windows).items():
        (bounds,) = partitions.windows_in([key])
        is_over = watermark is not None and partitions.windowing.numbered(bounds.stop - 1).is_closed_at(watermark)
        if len(bounds) > 1 and is_over:
            index.update()
            is_over = next(index.held.without(index.computed, bounds), None) is None
        event = dg.AssetMaterialization if is_over else dg.AssetObservation
        yield event(asset, partition=key, metadata={**which(held), **said(held)}, tags=tags)


def which(windows: Sequence[Window]) -> dict[str, Any]:
    """The number of windows that a run has computed in a partition, and their keys."""
    return {"windows": len(windows), "windows_computed": ", ".join(stretch_texts(windows))}


def _tag(context: Context, windows: Sequence[Window]) -> None:
    """Have a run's tag name the windows that it computes, if it does not already."""
    if windows and context.run.tags.get(WINDOWS) != (said := windows_tag(windows)):
        context.instance.add_run_tags(context.run.run_id, {WINDOWS: said})


def _plan(context: dg.OpExecutionContext, op: str, asset: dg.AssetKey, partitions: Iterable[str]) -> None:
    """Have the UI show these partitions as in progress, and as failed if the run fails, as it does for an asset's own
    runs. Does nothing in a Dagster without this private part."""
    if private.why_missing(("AssetMaterializationPlannedData",)):
        return
    for partition in partitions:
        planned = private.AssetMaterializationPlannedData(asset, partition=partition)
        event = dg.DagsterEvent.build_asset_materialization_planned_event(context.job_name, op, planned)
        context.instance.report_dagster_event(event, context.run_id)


def _materialized(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, events: Iterable[Event]
) -> dg.MaterializeResult[None]:
    """The result of an asset's own run, made from the events that a job would report: Dagster itself reports the run's
    partitions. From such a run it takes no evaluation of another asset's check."""
    checks = []
    for event in events:
        if isinstance(event, dg.AssetCheckEvaluation):
            result = dg.AssetCheckResult(**{name: getattr(event, name) for name in dg.AssetCheckResult._fields})
            checks += [result] if event.asset_key == asset else []
        elif event.asset_key == asset:
            context.add_asset_metadata(event.metadata, asset_key=asset, partition_key=event.partition)
        else:
            context.log_event(event)
    return dg.MaterializeResult(check_results=checks)


def _windows_of_partitions(
    context: dg.AssetExecutionContext,
    lake: LakeResource,
    partitions: Partitions,
    index: WindowIndex,
    further: timedelta,
) -> list[Window]:
    """The windows of a run's partitions that hold a heartbeat, look back at one, or are computed. Where some are no
    longer kept, the others; a table may look back `further`. Raises WindowNotClosed unless all of the partitions are
    over, and LakeError."""
    windowing, asked = partitions.windowing, partitions.windows_in(context.partition_keys)
    refuse_open([windowing.numbered(bounds.stop - 1) for bounds in asked], lake.watermark())
    index.update()
    found = [
        stretch for bounds in asked for spans in (index.reached, index.computed) for stretch in spans.within(bounds)
    ]
    windows, since = windows_of(found, windowing), lake.kept_windows().since()
    kept = [window for window in windows if since is None or window.start >= since + further] or windows
    _tag(context, kept)
    return kept
