"""Jobs and assets over windows: determine the windows that a run computes, and report the results to Dagster."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, TypeAlias

import dagster as dg
from pydantic import Field
from pyspark.sql import SparkSession

from tidemark.assets.catalog import ASSETS, CORRECTIONS, HEARTBEAT_DIFFS, Columns, key_of, shown, spec, within
from tidemark.assets.jobs.job import RETRY_ON_FAILURE, Context, job_of, working
from tidemark.assets.partitions import Partitions, stretch_texts, stretches_asked, windows_of, windows_tag
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock
from tidemark.pipeline.compute.micro_batch import ReplacedWindows, refuse_open
from tidemark.pipeline.errors import ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.tables.corrections import CORRECTION_COLUMNS
from tidemark.pipeline.lake.tables.corrections import CORRECTIONS as SCHEMA
from tidemark.pipeline.lake.tables.handed_commits import ACCEPTED
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.lake.tables.windowed import DiffRun, WindowedTable
from tidemark.pipeline.orchestrator.names import PIPELINE, WINDOWS, op_of, pipeline_tag
from tidemark.pipeline.quality.corrected import FollowedTable, follow
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window, Windowing, start_of
from tidemark.resources import private
from tidemark.resources.keys import LAKE, SPARK, keys_of, lake_of
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource

LASTING = (ExecutorsUnable, InvalidSettings, TableFailed, WindowExpired, WindowNotClosed, ValueError)
"""Errors that would occur again if the run were retried."""

UPDATED_AT = "dagster/last_updated_timestamp"
"""Metadata of an observation that Dagster's freshness checks read. Dagster does not export this name."""

Event: TypeAlias = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
Compute: TypeAlias = Callable[[Context, Sequence[Window]], Iterator[Event]]
LostEvents: TypeAlias = Callable[[DiffRun, Mapping[str, int], LakeResource, dg.DagsterInstance], Iterator[Event]]
"""A function that yields the events that a run ended too early to report. Its arguments include the run's manifest, and
each window's number of rows."""


class WindowsConfig(dg.Config):
    """The windows to compute: keys such as 2026-11-21T05-20Z, and ranges such as 2026-11-21T05-20Z..2026-11-21T06-10Z.
    If empty, the windows in the run's tag tidemark/windows are computed."""

    windows: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class WindowsAsset:
    """An asset whose windows are computed by runs: its key without the pipeline's prefix, its partitions, and the index
    of its windows. `further` is the time by which the asset's lookback exceeds that of `heartbeat_diffs`."""

    settings: Settings
    asset: dg.AssetKey
    partitions: Partitions
    index: Callable[[LakeResource], WindowIndex] = lambda lake: lake.window_index("run")
    further: timedelta = timedelta(0)

    @property
    def key(self) -> dg.AssetKey:
        return key_of(self.settings, self.asset)

    def defined(
        self,
        compute: Compute,
        *resources: str,
        deps: Sequence[dg.AssetKey],
        columns: Columns | None = None,
        folder: str = "",
        **more: Any,
    ) -> dg.AssetsDefinition:
        """Define the asset. Its folder in the lake is by default named after the asset. If the UI or a backfill
        materializes partitions of the asset, the run calls `compute` with their windows."""
        settings = self.settings
        decorator: Callable[..., dg.AssetsDefinition] = dg.asset(
            key=self.key,
            deps=[key_of(settings, dep) for dep in deps],
            partitions_def=self.partitions.definition(),
            backfill_policy=dg.BackfillPolicy.single_run(),
            kinds={"pyspark", "deltalake"},
            required_resource_keys=keys_of(settings, *resources),
            **shown(settings, within(settings, folder or self.asset.path[-1]), columns),
            **more,
        )

        def computed(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
            ours = {self.key, *(key_of(settings, one) for one in ASSETS)}
            selected = context.run.asset_selection or set()
            is_ours = bool(selected) and selected <= ours  # else the run has other assets too
            if is_ours:
                context.instance.add_run_tags(context.run.run_id, {PIPELINE: pipeline_tag(settings.lake.uri)})
            ACCEPTED.set()
            try:
                with working(context, *LASTING):
                    windows = self._windows_of_partitions(context, lake_of(context, settings))
                    yield from _materialized(context, self.key, compute(context, windows))
            except dg.Failure as failure:
                if is_ours and not failure.allow_retries:  # Dagster retries other failures, since no sensor does
                    context.instance.add_run_tags(context.run.run_id, {RETRY_ON_FAILURE: "false"})
                raise

        return decorator(computed)

    def reports(
        self,
        lake: LakeResource,
        instance: dg.DagsterInstance,
        done: ReplacedWindows,
        extra: Callable[[Sequence[Window]], dict[str, Any]],
        tags: Mapping[str, str] | None = None,
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        """Yield an event for each partition that contains windows computed by a run. Call this after the run's commits.
        `extra` returns further metadata for these windows. The event is an observation until the partition has closed
        and all of its windows with heartbeats are computed. Then it is a materialization, so that downstream assets
        read only complete partitions. An observation names no partition, because Dagster's freshness checks would count
        an observed partition as fresh.

        A run that ends between its commit and its events reports nothing. Therefore, a partition next to those of this
        run is also reported if it is complete and Dagster has no materialization of it. Partitions older than
        `housekeeping.dagster_runs` are left out, because housekeeping may have deleted their materializations."""
        index = cache(lambda: self.index(lake).update())  # most runs complete no partition, and do not need it
        kept, now = self.settings.housekeeping.dagster_runs, lake.clock.now()
        held = self.partitions.holding(map(self.partitions.windowing.named, done.rows))
        for key, windows in held.items():
            metadata = {**window_keys(windows), **extra(windows)}
            if self._is_complete(key, index, done):
                yield dg.AssetMaterialization(self.key, partition=key, metadata=metadata, tags=tags)
            else:
                yield dg.AssetObservation(
                    self.key, metadata={**metadata, UPDATED_AT: dg.MetadataValue.timestamp(now)}, tags=tags
                )
        beside = [key for key in self.partitions.beside(held) if kept is None or now - start_of(key) < kept]
        materialized = dg.DagsterEventType.ASSET_MATERIALIZATION
        # An empty set would ask for all partitions.
        known = instance.get_latest_storage_id_by_partition(self.key, materialized, set(beside)) if beside else {}
        for key in beside:
            if key not in known and self._is_complete(key, index, done, least=1):
                yield dg.AssetMaterialization(self.key, partition=key, tags=tags)

    def _is_complete(self, key: str, index: Callable[[], WindowIndex], done: ReplacedWindows, least: int = 0) -> bool:
        """Return True if a partition has closed, all of its windows with heartbeats are computed, and at least `least`
        of its windows are computed."""
        (bounds,), windowing = self.partitions.windows_in([key]), self.partitions.windowing
        if not windowing.numbered(bounds.stop - 1).is_closed_at(done.watermark):
            return False
        if len(bounds) == 1 and not least:  # the run has computed it
            return True
        held, computed = index().held, index().computed
        return next(held.without(computed, bounds), None) is None and sum(map(len, computed.within(bounds))) >= least

    def _windows_of_partitions(self, context: dg.AssetExecutionContext, lake: LakeResource) -> list[Window]:
        """Return the windows in the run's partitions that are computed, or that have a heartbeat in their interval or
        lookback. If a partition has such windows on both sides of the retention boundary, those before the boundary are
        left out. If a partition has no such window, and its last window is before the boundary, return the last window,
        so that `refuse_expired` refuses it. Raises LakeError, WindowNotClosed if a partition is not closed, and
        ValueError if there is no partition."""
        if not (context.has_partition_key or context.has_partition_key_range):
            raise ValueError(f"the run names no partition of {self.key.to_user_string()}: choose at least one")
        windowing, asked = self.partitions.windowing, self.partitions.windows_in(context.partition_keys)
        refuse_open([windowing.numbered(bounds.stop - 1) for bounds in asked], lake.watermark())
        index = self.index(lake).update()
        since, windows = lake.kept_windows("run").since(), list[Window]()
        first = EPOCH if since is None else since + self.further
        for bounds in asked:
            both = [stretch for spans in (index.reached, index.computed) for stretch in spans.within(bounds)]
            found, last = windows_of(both, windowing), windowing.numbered(bounds.stop - 1)
            kept = [window for window in found if window.start >= first]
            windows += kept or found or ([last] if last.start < first else [])
        _tag(context, windows)
        return windows


def windows_job(name: str, assets: Sequence[WindowsAsset], compute: Compute, about: str) -> dg.JobDefinition:
    """Define a job over the windows in its config or its tag. `compute` computes and commits the windows for `assets`,
    and yields the events for Dagster. All `assets` must have the same partitions."""
    settings, partitions = assets[0].settings, assets[0].partitions

    @job_of(settings, name, op_of(name), LAKE, SPARK, about=about, lasting=LASTING)
    def job(context: dg.OpExecutionContext, config: WindowsConfig) -> Iterator[Event | dg.Output[None]]:
        """Computes windows and commits them together. The sensors request only a few windows at a time, so that a
        long run does not delay live windows."""
        ACCEPTED.set()
        stretches = stretches_asked(config.windows, context.run.tags, partitions.windowing)
        _refuse_outside(stretches, partitions.windowing, lake_of(context, settings))
        if not (windows := windows_of(stretches, partitions.windowing)):
            raise ValueError(f"no window is named: name windows in the op's config or in the tag {WINDOWS}")
        _tag(context, windows)
        # Before `_plan`: no later run could compute the windows, so their partitions would be shown as failed for good.
        lake_of(context, settings).kept_windows("run").refuse_expired(windows, further=assets[0].further)
        for asset in assets:
            _plan(context, op_of(name), asset.key, partitions.holding(windows))
        yield from compute(context, windows)
        yield dg.Output(None, metadata={"windows": len(windows)})

    return job


def _refuse_outside(stretches: Iterable[range], windowing: Windowing, lake: LakeResource) -> None:
    """Raise ValueError if a range of windows begins before `windows.first`, and WindowNotClosed if it ends in the
    future and is not closed. Only the ends of a range are checked, because it may have millions of windows."""
    for first, last in ((windowing.numbered(stretch[0]), windowing.numbered(stretch[-1])) for stretch in stretches):
        if first.start < windowing.first:
            raise ValueError(f"{first.key} is before the first window, {windowing.containing(windowing.first).key}")
        if last.end > lake.clock.now():
            refuse_open([last], lake.watermark())


def batch_parts(
    lake: LakeResource,
    spark: SparkResource,
    run: str,
    windows: Sequence[Window],
    tables: Sequence[WindowedTable],
    further: timedelta = timedelta(0),
) -> tuple[SparkSession, Heartbeats, datetime | None, str, Clock, Callable[[Sequence[Window]], None]]:
    """Return the first fields of `WindowBatch`, up to and including `refuse_expired`, for a run over these windows.
    `tables` and `heartbeats` are opened in parallel, to save time. `further` is as in WindowsAsset. Raises
    WindowExpired and WindowNotClosed before Spark is used."""
    heartbeats = lake.of("run").heartbeats()
    with ThreadPoolExecutor() as pool:  # an error in opening a table occurs again when it is used
        for opened in (heartbeats, *(each.table for each in tables)):
            pool.submit(opened.current)
        watermark = lake.watermark()
        refuse_expired = partial(lake.kept_windows("run").refuse_expired, further=further)
        refuse_expired(windows)
        refuse_open(windows, watermark)
        return spark.session(), heartbeats, watermark, run, SystemClock(), refuse_expired


def window_keys(windows: Sequence[Window]) -> dict[str, Any]:
    """Return metadata for a partition: the number and the keys of the windows that a run has computed in it."""
    return {"windows": len(windows), "windows_computed": ", ".join(stretch_texts(windows))}


def corrections_asset(settings: Settings, tables: Iterable[str] = ()) -> Sequence[dg.AssetSpec]:
    """Return the spec of the asset `corrections`, downstream of `heartbeat_diffs` and these custom tables. Return
    nothing unless `windows.corrections` is set."""
    if not settings.windows.corrections:
        return []
    about = (
        "The changes of recomputed windows: one row for each row that was added, removed or changed, with its old and "
        "new values. Materialized by the run that records a change."
    )
    deps = [HEARTBEAT_DIFFS, *map(dg.AssetKey, tables)]
    uri, columns = within(settings, CORRECTIONS.path[-1]), (SCHEMA, CORRECTION_COLUMNS)
    return [spec(settings, CORRECTIONS, about, uri=uri, kinds={"deltalake"}, columns=columns, deps=deps)]


def corrections_noted(lake: LakeResource, table: FollowedTable) -> Iterator[dg.AssetMaterialization]:
    """Record the rows that changed in a table since the last call, if `windows.corrections` is set. If rows changed,
    yield a materialization of the asset `corrections`. A failure is only logged, because the windows are committed and
    the next run tries again."""
    if not lake.settings.windows.corrections:
        return
    try:
        rows = follow(lake.of("run").corrections(), table, lake.clock)
    except Exception as error:
        log = dg.get_dagster_logger()
        log.warning(f"the corrections of {table.name} were not recorded; the next run tries again: {error!r}")
        return
    if rows:
        metadata = {"rows": rows, f"rows/{table.name}": rows}
        yield dg.AssetMaterialization(key_of(lake.settings, CORRECTIONS), metadata=metadata)


def _tag(context: Context, windows: Sequence[Window]) -> None:
    if windows and context.run.tags.get(WINDOWS) != (said := windows_tag(windows)):
        context.instance.add_run_tags(context.run.run_id, {WINDOWS: said})


def _plan(context: dg.OpExecutionContext, op: str, asset: dg.AssetKey, partitions: Iterable[str]) -> None:
    """Make the UI show these partitions as in progress, and as failed if the run fails. This needs a private class of
    Dagster. If this version of Dagster lacks it, do nothing."""
    if private.why_missing(("AssetMaterializationPlannedData",)):
        return
    for partition in partitions:
        planned = private.AssetMaterializationPlannedData(asset, partition=partition)
        event = dg.DagsterEvent.build_asset_materialization_planned_event(context.job_name, op, planned)
        context.instance.report_dagster_event(event, context.run_id)


def _materialized(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, events: Iterable[Event]
) -> Iterator[dg.MaterializeResult[None]]:
    """Convert the events of `Compute` into the result of a run that materializes `asset`.

    - Dagster itself reports the run's partitions of `asset`, so only their metadata is passed on.
    - The run's partitions of another asset are left to that asset's step, if the run has one.
    - All other events follow the result. If the event of a downstream asset came first, Dagster would show that asset
      as outdated.
    - Checks of other assets are dropped, because Dagster would refuse them."""
    checks, others = [], list[Event]()
    steps = context.run.step_keys_to_execute or [node.name for node in context.job_def.nodes]
    for event in events:
        if isinstance(event, dg.AssetCheckEvaluation):
            result = dg.AssetCheckResult(**{name: getattr(event, name) for name in dg.AssetCheckResult._fields})
            checks += [result] if event.asset_key == asset else []
        elif event.asset_key == asset and event.partition in context.partition_keys:
            context.add_asset_metadata(event.metadata, asset_key=asset, partition_key=event.partition)
        elif event.asset_key.to_python_identifier() not in steps or event.partition not in context.partition_keys:
            others.append(event)
    yield dg.MaterializeResult(check_results=checks)
    for event in others:
        context.log_event(event)
