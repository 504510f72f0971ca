"""Tables of one's own in Dagster: an asset, a check and a job for each, and the sensor that requests what is due."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, key_of, ticking_sensor, windowed_asset
from tidemark.assets.events import failing_run
from tidemark.assets.jobs.by_window import (
    LASTING,
    Compute,
    Event,
    materialized,
    reports,
    windows_job,
    windows_of_partitions,
)
from tidemark.assets.jobs.corrections import corrections_noted
from tidemark.assets.jobs.loaded_tables import LoadedTables, table_of_run
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.lost_runs import Context, beating
from tidemark.assets.scheduler.requests import NothingDue, pause_of, run_over
from tidemark.assets.scheduler.runs import Runs, stretch_ends
from tidemark.assets.sensors.watching import Jobs
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.compute.own_tables import OwnBatch, compute_own
from tidemark.pipeline.compute.replacement import Outcome, refuse_open
from tidemark.pipeline.compute.table_definition import TableDefinition
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.tables.own_table import FOLDER
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.orchestrator.names import DEFINITION, compute_job
from tidemark.pipeline.quality.corrected import FollowedTable
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed, further_back
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import WINDOWS_PER_RUN, Window
from tidemark.resources.keys import LAKE, SPARK, keys_of, lake_of, spark_of
from tidemark.resources.lake import LakeResource

TABLES = "tables"
"""The sensor, and the `user` of the parts of the lake that it reads."""

UNIQUE = "key_is_unique"
LONGEST_PAUSE = timedelta(minutes=10)
"""A table whose runs keep failing is tried again after at most this, and at once when its file has changed."""

SHOWN_SOURCE = 20_000
"""Characters of a function or of SQL that the UI shows."""


def own_table_definitions(
    settings: Settings, clock: Clock, tables: Iterable[TableDefinition]
) -> tuple[list[dg.AssetsDefinition], list[dg.JobDefinition]]:
    """An asset and a job for each table of one's own."""
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
    key = key_of(settings, dg.AssetKey(loaded.name))
    unique = dg.AssetCheckSpec(UNIQUE, asset=key, description=f"One row of a window for each {', '.join(loaded.key)}.")
    doc = (loaded.build.__doc__ or "").strip()
    shown = loaded.source[:SHOWN_SOURCE]

    @windowed_asset(
        settings,
        dg.AssetKey(loaded.name),
        None,
        deps=[HEARTBEATS, HEARTBEAT_DIFFS],
        partitions=partitions,
        folder=f"{FOLDER}/{loaded.name}",
        required_resource_keys=keys_of(settings, LAKE, SPARK),
        check_specs=[unique] if loaded.key else [],
        code_version=loaded.version,
        description=f"{doc}\n\n```\n{shown}\n```".strip(),
    )
    def own_table(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        lake = lake_of(context, settings)
        further = further_back(loaded.lookback, settings.windows.lookback)
        with failing_run(*LASTING), beating(context):
            windows = windows_of_partitions(context, lake, partitions, _index(lake, loaded, partitions), further)
            yield materialized(context, key, compute(context, windows))

    return own_table


def _computed(
    settings: Settings, loaded: TableDefinition, partitions: Partitions, context: Context, windows: Sequence[Window]
) -> Iterator[Event]:
    """Compute windows by the table's file as it is now, and say what Dagster is to know. A failure leaves a note in the
    lake."""
    lake, run = lake_of(context, settings), context.run.run_id
    key, watermark = key_of(settings, dg.AssetKey(loaded.name)), lake.watermark()
    with lake.whole().failed_runs(loaded.name).noting(run, stretch_ends(windows), lake.clock):
        table = table_of_run(context, settings, loaded)
        done = compute_table(table, windows, watermark, lake, context) if windows else Outcome(0, watermark, {}, ())
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
    """The tags by which Dagster shows an asset whose code has changed since a job has computed it, as it does after an
    asset's own run."""
    tags = {"dagster/code_version": version}
    for key in (key_of(settings, one) for one in (HEARTBEATS, HEARTBEAT_DIFFS)):
        newest = instance.get_latest_materialization_event(key)
        of_input = (newest and newest.asset_materialization and newest.asset_materialization.tags) or {}
        path = "/".join(key.path)
        tags[f"dagster/input_data_version/{path}"] = of_input.get("dagster/data_version", "INITIAL")
        tags[f"dagster/input_event_pointer/{path}"] = "NULL"
    return tags


def _index(lake: LakeResource, table: TableDefinition, partitions: Partitions) -> WindowIndex:
    """By what the run has opened."""
    return WindowIndex(
        lake.heartbeats("run"), lake.own_table("run", table.name).table, partitions.windowing, table.lookback
    )


def compute_table(
    table: TableDefinition, windows: Sequence[Window], watermark: datetime | None, lake: LakeResource, context: Context
) -> Outcome:
    """Compute windows of a table of one's own, and replace them in the lake. Raises WindowNotClosed, before
    Spark is used, WindowExpired, and other TidemarkErrors."""
    settings = lake.settings
    further = further_back(table.lookback, settings.windows.lookback)
    refuse_expired = partial(lake.kept_windows().refuse_expired, further=further)
    refuse_expired(windows)
    refuse_open(windows, watermark)
    # Before the heartbeats are listed: see `OwnBatch`.
    computed = ComputedWindows.of(lake.diffs("run").runs(), settings.windowing)
    batch = OwnBatch(
        spark_of(context, settings).session(),
        definition=table,
        table=lake.own_table("run", table.name),
        heartbeats=lake.heartbeats("run"),
        inputs=computed.inputs(table.windowing(settings.windows), table.lookback),
        watermark=watermark,
        run=context.run.run_id,
        clock=SystemClock(),
        refuse_expired=refuse_expired,
    )
    return compute_own(batch, windows)


def due_windows(
    lake: LakeResource, tables: Iterable[TableDefinition], now: datetime
) -> Iterator[tuple[TableDefinition, list[int] | TidemarkError]]:
    """Each table with the numbers of its due windows, in order, or why these cannot be told. Raises LakeError if
    `heartbeat_diffs` itself cannot be read."""
    settings, kept, diffs = lake.settings, lake.kept_windows(), lake.diffs(TABLES)
    watermark = lake.state(TABLES).watermark
    closed = kept.closed(None if watermark is None else min(watermark, now))
    current = diffs.table.current()
    version = -1 if current is None else current.version()
    looks = [(table, lake.kept.get((TABLES, table.name, "nothing_due"), NothingDue)) for table in tables]
    left = [(table, look) for table, look in looks if not look.holds((closed, version, table.lookback), now)]
    if not left:
        return
    computed = ComputedWindows.of(diffs.runs(at=current), settings.windowing)
    followed = Followed.read(computed, settings.windows.lookback, closed, lake.window_index(TABLES), kept)
    for table, look in left:
        try:
            made = lake.own_table(TABLES, table.name).made()
        except TidemarkError as error:
            yield table, error
            continue
        due = followed.due(table.windowing(settings.windows), table.lookback, made)
        look.note((closed, version, table.lookback), now, is_due=bool(due))
        yield table, due


def tables_sensor(
    settings: Settings, clock: Clock, tables: Mapping[str, TableDefinition], jobs: Jobs
) -> dg.SensorDefinition:
    loaded = LoadedTables(settings, tables)

    @ticking_sensor(
        settings,
        TABLES,
        required_resource_keys=keys_of(settings, LAKE),
        jobs=jobs,
        description=f"Requests runs over the due windows of {', '.join(tables)}: closed ones that are not computed, or "
        f"were computed before {HEARTBEAT_DIFFS.to_user_string()} was computed again.",
    )
    def own_tables(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lake, runs = lake_of(context, settings), Runs(context.instance, settings)
        requests, said = list[dg.RunRequest](), list[str]()
        found = {name: loaded.now(name) for name in tables}
        free = list[TableDefinition]()
        for name, table_now in found.items():
            pause = pause_of(runs, compute_job(name), clock.now(), longest=LONGEST_PAUSE, counts=table_now.counts)
            if table_now.wrong:
                context.log.error("%s: runs fail now: %s", name, table_now.wrong)
            said += [f"{name}: {reason}" for reason in (pause, table_now.wrong) if reason]
            free += [] if pause else [table_now.definition]
        for table, due in due_windows(lake, free, clock.now()):
            if isinstance(due, TidemarkError):
                context.log.error("the windows of %s are not known: %s", table.name, due)
                said.append(f"{table.name}: {due}")
            elif due:
                windowing = table.windowing(settings.windows)
                newest = [windowing.numbered(number) for number in due[-WINDOWS_PER_RUN:]]
                context.log.info(
                    "%s: computing %d of %d windows, from %s on", table.name, len(newest), len(due), newest[0]
                )
                tags = {DEFINITION: found[table.name].mark}
                requests.append(run_over(settings, compute_job(table.name), newest, tags))
        skipped = None if requests else dg.SkipReason("; ".join(said) or "every closed window is computed")
        return dg.SensorResult(run_requests=requests, skip_reason=skipped)

    return own_tables
