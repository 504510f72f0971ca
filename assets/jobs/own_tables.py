"""Custom tables in Dagster: an asset, a check and a job for each."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, key_of
from tidemark.assets.jobs.by_window import Compute, Event, asset_by_window, batch_parts, reports, windows_job
from tidemark.assets.jobs.corrections import corrections_noted
from tidemark.assets.jobs.job import Context
from tidemark.assets.jobs.loaded_tables import table_of_run
from tidemark.assets.partitions import Partitions
from tidemark.assets.window_names import stretch_ends
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.compute.own_tables import OwnBatch, compute_own
from tidemark.pipeline.compute.replacement import ReplacedWindows
from tidemark.pipeline.compute.table_definition import TableDefinition
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.lake.tables.windowed import FOLDER, PARTITION
from tidemark.pipeline.orchestrator.names import compute_job
from tidemark.pipeline.quality.corrected import FollowedTable
from tidemark.pipeline.quality.due_windows import ComputedWindows, further_back
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window
from tidemark.resources.keys import LAKE, SPARK, lake_of, spark_of
from tidemark.resources.lake import LakeResource

UNIQUE = "key_is_unique"
SHOWN_SOURCE = 20_000
"""Characters of a function or a query that the UI shows at most."""


def own_table_definitions(
    settings: Settings, clock: Clock, tables: Iterable[TableDefinition]
) -> tuple[list[dg.AssetsDefinition], list[dg.JobDefinition]]:
    """Define an asset and a job for each custom table."""
    assets, jobs = [], []
    for table in tables:
        partitions = Partitions(table.windowing(settings.windows), clock.now())
        compute, key = partial(_computed, settings, table, partitions), key_of(settings, dg.AssetKey(table.name))
        about = f"Windows of {table.name}, in one run."
        assets.append(_asset(settings, table, partitions, compute))
        jobs.append(windows_job(settings, compute_job(table.name), partitions, [key], compute, about))
    return assets, jobs


def _asset(
    settings: Settings, loaded: TableDefinition, partitions: Partitions, compute: Compute
) -> dg.AssetsDefinition:
    key, doc = dg.AssetKey(loaded.name), (loaded.build.__doc__ or "").strip()
    about = f"One row of a window for each {', '.join(loaded.key)}."
    unique = dg.AssetCheckSpec(UNIQUE, asset=key_of(settings, key), description=about)
    return asset_by_window(
        settings,
        key,
        partitions,
        compute,
        partial(_index, table=loaded, partitions=partitions),
        LAKE,
        SPARK,
        deps=[HEARTBEATS, HEARTBEAT_DIFFS],
        folder=f"{FOLDER}/{loaded.name}",
        further=further_back(loaded.lookback, settings.windows.lookback),
        check_specs=[unique] if loaded.key else [],
        code_version=loaded.version,
        description=f"{doc}\n\n```\n{loaded.source[:SHOWN_SOURCE]}\n```".strip(),
    )


def _computed(
    settings: Settings, loaded: TableDefinition, partitions: Partitions, context: Context, windows: Sequence[Window]
) -> Iterator[Event]:
    """Compute windows with the table's current file, and yield the events for Dagster. A failure leaves a note in the
    lake."""
    lake, run = lake_of(context, settings), context.run.run_id
    key, watermark = key_of(settings, dg.AssetKey(loaded.name)), lake.watermark()
    with lake.whole().failed_runs(loaded.name).noting(run, stretch_ends(windows), lake.clock):
        table = table_of_run(context, settings, loaded)
        done = _compute(table, windows, watermark, lake, context) if windows else ReplacedWindows(0, watermark, {}, ())
        within = [column for column in table.key if column != PARTITION]
        twice = lake.own_table("run", table.name).twice(done.rows, within) if table.key else 0

    def said(held: Sequence[Window]) -> dict[str, Any]:
        rows = sum(done.rows[window.key] for window in held)
        return {"rows": rows, "version": table.version, "heartbeats_version": done.heartbeats_version}

    context.log.info(f"computed {len(done.rows)} windows, {sum(done.rows.values())} rows, by version {table.version}")
    computed = [window for window in windows if window.key in done.rows]
    tags = provenance(context.instance, table.version, settings)
    yield from reports(key, partitions, computed, watermark, _index(lake, loaded, partitions), said, tags)
    if loaded.key:
        about = f"{twice} rows of {len(done.rows)} windows have the key of another row"
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=UNIQUE,
            passed=not twice,
            severity=dg.AssetCheckSeverity.WARN,
            description=about,
            metadata={"rows": twice},
        )
    yield from corrections_noted(lake, FollowedTable(table.name, lake.own_table("run", table.name), table.key))


def provenance(instance: dg.DagsterInstance, version: str, settings: Settings) -> dict[str, str]:
    """Return the tags from which Dagster tells that an asset's code has changed since a job computed it. Runs that
    materialize the asset get them from Dagster."""
    tags = {"dagster/code_version": version}
    for key in (key_of(settings, one) for one in (HEARTBEATS, HEARTBEAT_DIFFS)):
        newest = instance.get_latest_materialization_event(key)
        of_input = (newest and newest.asset_materialization and newest.asset_materialization.tags) or {}
        path = "/".join(key.path)
        tags[f"dagster/input_data_version/{path}"] = of_input.get("dagster/data_version", "INITIAL")
        tags[f"dagster/input_event_pointer/{path}"] = "NULL"
    return tags


def _index(lake: LakeResource, table: TableDefinition, partitions: Partitions) -> WindowIndex:
    return WindowIndex(
        lake.heartbeats("run"), lake.own_table("run", table.name).table, partitions.windowing, table.lookback
    )


def _compute(
    table: TableDefinition, windows: Sequence[Window], watermark: datetime | None, lake: LakeResource, context: Context
) -> ReplacedWindows:
    """Compute windows of a custom table, and replace them in the lake. Raises WindowNotClosed (before Spark is used),
    WindowExpired and other TidemarkErrors."""
    settings = lake.settings
    further = further_back(table.lookback, settings.windows.lookback)
    parts = batch_parts(lake, spark_of(context, settings), context.run.run_id, windows, watermark, further)
    # Before the heartbeats are listed: see `OwnBatch`.
    computed = ComputedWindows.of(lake.diffs("run").runs(), settings.windowing)
    batch = OwnBatch(
        **parts,
        definition=table,
        table=lake.own_table("run", table.name),
        inputs=computed.inputs(table.windowing(settings.windows), table.lookback),
    )
    return compute_own(batch, windows)
