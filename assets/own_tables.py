"""Custom tables in Dagster: an asset, a check and a job for each table, and the sensor that requests runs over the
tables' windows.

A table's file may change while the code server runs, because each run reads the file again. The table's partitions and
its check must not change, because Dagster reads them only when it loads the table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg
import polars as pl

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, key_of
from tidemark.assets.checks import evaluation_of, verdict
from tidemark.assets.jobs.by_window import Event, LostEvents, WindowsAsset, batch_parts, corrections_noted, windows_job
from tidemark.assets.jobs.job import Context
from tidemark.assets.partitions import Partitions, stretch_ends
from tidemark.assets.scheduler.requests import CHOICE, NothingDue, pause_of, run_over
from tidemark.assets.scheduler.runs import Runs, ended_attempts
from tidemark.assets.scheduler.turns import resting_sentence, take_turn
from tidemark.assets.sensors.watching import Jobs, ticking_sensor
from tidemark.pipeline.clock import Clock, format_duration
from tidemark.pipeline.compute.micro_batch import ReplacedWindows, compute_windows
from tidemark.pipeline.compute.own_tables import OwnBatch
from tidemark.pipeline.compute.table_definition import UNUSABLE, TableDefinition, file_now, read_table
from tidemark.pipeline.errors import TableFailed, TidemarkError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.lake.tables.windowed import FOLDER, PARTITION, DiffRun
from tidemark.pipeline.orchestrator.names import DEFINITION, compute_job
from tidemark.pipeline.quality.corrected import FollowedTable
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed, further_back
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import WINDOWS_PER_RUN, Window
from tidemark.resources.keys import LAKE, SPARK, lake_of, spark_of
from tidemark.resources.lake import LakeResource

UNIQUE = "key_is_unique"
SHOWN_SOURCE = 20_000
"""Maximum number of characters of a table's function or query that Dagster's UI shows."""

TABLES = "tables"
"""Name of the sensor that requests runs of custom tables. `LakeResource` caches the sensor's objects under this
name."""

LONGEST_PAUSE = timedelta(minutes=10)
"""Maximum pause before a table whose runs keep failing is tried again. There is no pause once the table's file has
changed."""

LOAD_AGAIN = (
    "when Dagster loaded the table. Nothing was written. Restart `tidemark up`; in your own Dagster, restart the code "
    "server"
)


def own_table_definitions(
    settings: Settings, clock: Clock, tables: Iterable[TableDefinition]
) -> tuple[list[dg.AssetsDefinition], list[dg.JobDefinition], dict[str, LostEvents]]:
    """Define an asset and a job for each custom table. Also return the `LostEvents` of each table, by its name."""
    assets, jobs, lost = [], [], dict[str, LostEvents]()
    for table in tables:
        asset = WindowsAsset(
            settings,
            dg.AssetKey(table.name),
            Partitions(table.windowing(settings.windows), clock.now()),
            partial(_index, table, "run"),
            further_back(table.lookback, settings.windows.lookback),
        )
        compute, doc = partial(_computed, asset, table), (table.build.__doc__ or "").strip()
        unique = f"No two rows of a window have the same {', '.join(table.key)}."
        made = asset.defined(
            compute,
            LAKE,
            SPARK,
            deps=[HEARTBEATS, HEARTBEAT_DIFFS],
            folder=f"{FOLDER}/{table.name}",
            check_specs=[dg.AssetCheckSpec(UNIQUE, asset=asset.key, description=unique)] if table.key else [],
            code_version=table.version,
            description=f"{doc}\n\n```\n{table.source[:SHOWN_SOURCE]}\n```".strip(),
        )
        assets.append(made)
        jobs.append(windows_job(compute_job(table.name), [asset], compute, f"Computes windows of {table.name}."))
        lost[table.name] = partial(_lost_events, replace(asset, index=partial(_index, table, CHOICE)))
    return assets, jobs, lost


def _computed(
    asset: WindowsAsset, loaded: TableDefinition, context: Context, windows: Sequence[Window]
) -> Iterator[Event]:
    settings, run = asset.settings, context.run.run_id
    lake = lake_of(context, settings)
    with lake.of("run").failed_runs(loaded.name).noting(run, stretch_ends(windows), lake.clock):
        context.instance.add_run_tags(run, {DEFINITION: _mark(settings, loaded)})
        table = _usable(settings, loaded, loaded)
        done = _compute(asset, table, windows, lake, context) if windows else ReplacedWindows(0, None, {}, ())
        twice = 0
        if table.key and windows:
            columns = list(dict.fromkeys((PARTITION, *table.key)))
            keys = pl.DataFrame(lake.of("run").own_table(table.name).read(done.rows, columns=columns))
            twice = len(keys) - keys.n_unique()

    many, rows = counted(len(done.rows), "window"), counted(sum(done.rows.values()), "row")
    context.log.info(f"computed {many} with {rows}, by version {table.version} of the table's definition")
    yield from _reports(asset, lake, context.instance, done, table.version)
    if loaded.key:
        about = f"{counted(twice, 'row')} with a repeated key, in {many}"
        result = verdict(passed=not twice, description=about, rows=twice)
        yield evaluation_of(result._replace(asset_key=asset.key, check_name=UNIQUE))
    yield from corrections_noted(lake, FollowedTable(table.name, lake.of("run").own_table(table.name), table.key))


def _reports(
    asset: WindowsAsset, lake: LakeResource, instance: dg.DagsterInstance, done: ReplacedWindows, version: str
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    def said(held: Sequence[Window]) -> dict[str, Any]:
        rows = sum(done.rows[window.key] for window in held)
        return {"rows": rows, "version": version, "heartbeats_version": done.heartbeats_version}

    return asset.reports(lake, instance, done, said, provenance(instance, version, asset.settings))


def _lost_events(
    asset: WindowsAsset, manifest: DiffRun, rows: Mapping[str, int], lake: LakeResource, instance: dg.DagsterInstance
) -> Iterator[Event]:
    done = ReplacedWindows(manifest.heartbeats_version, manifest.watermark, rows, ())
    return _reports(asset, lake, instance, done, manifest.version or "")


def provenance(instance: dg.DagsterInstance, version: str, settings: Settings) -> dict[str, str]:
    """Return the tags by which Dagster recognizes that an asset's code has changed since the asset was computed.
    Dagster adds these tags itself if a run materializes the asset, but not to events that a job reports."""
    tags = {"dagster/code_version": version}
    for key in (key_of(settings, one) for one in (HEARTBEATS, HEARTBEAT_DIFFS)):
        newest = instance.get_latest_materialization_event(key)
        of_input = (newest and newest.asset_materialization and newest.asset_materialization.tags) or {}
        path = "/".join(key.path)
        tags[f"dagster/input_data_version/{path}"] = of_input.get("dagster/data_version", "INITIAL")
        tags[f"dagster/input_event_pointer/{path}"] = "NULL"
    return tags


def _index(table: TableDefinition, user: str, lake: LakeResource) -> WindowIndex:
    return lake.of(user).window_index(table.windowing(lake.settings.windows), f"{FOLDER}/{table.name}")


def _compute(
    asset: WindowsAsset, table: TableDefinition, windows: Sequence[Window], lake: LakeResource, context: Context
) -> ReplacedWindows:
    settings, made, diffs = asset.settings, lake.of("run").own_table(table.name), lake.of("run").diffs()
    further = further_back(table.lookback, settings.windows.lookback)
    parts = batch_parts(lake, spark_of(context, settings), context.run.run_id, windows, [made, diffs], further)
    # This must be read before the heartbeats are listed: see `OwnBatch`.
    computed = ComputedWindows.of(diffs.runs(), settings.windowing)
    digests = computed.digests(windows, table.windowing(settings.windows))
    return compute_windows(OwnBatch(*parts, (made,), table, digests), windows)


def _ran(mark: str, failed: dg.RunRecord) -> bool:
    """Return True if a failed run used the version of the table's file that `mark` identifies. Only failures with the
    current version delay the next run."""
    return failed.dagster_run.tags.get(DEFINITION) == mark


def _mark(settings: Settings, loaded: TableDefinition) -> str:
    return f"{loaded.file}.{file_now(settings, loaded)}"


def _usable(settings: Settings, loaded: TableDefinition, known: TableDefinition) -> TableDefinition:
    """Return the table that the current file defines, or `known` if the file is unchanged. Raises InvalidSettings if
    the file is unusable. Raises TableFailed if the window length differs from the one that Dagster loaded, or if only
    one of the two definitions has a key.

    If the file was unusable when Dagster loaded it, a key in the current definition is not an error. No check covers
    this key until Dagster loads the file again.
    """
    if not loaded.file:
        return loaded
    now = read_table(settings, loaded.name, known)
    lengths = [table.windowing(settings.windows).length for table in (now, loaded)]
    if lengths[0] != lengths[1]:
        new, old = map(format_duration, lengths)
        raise TableFailed(f"the table {now.name} has windows of {new} now, but had windows of {old} {LOAD_AGAIN}")
    if loaded.file != UNUSABLE and bool(now.key) != bool(loaded.key):
        is_new = "has a key now, but had none" if now.key else "has no key now, but had one"
        raise TableFailed(f"the table {now.name} {is_new} {LOAD_AGAIN}")
    return now


def due_windows(
    lake: LakeResource, tables: Iterable[TableDefinition], now: datetime
) -> Iterator[tuple[TableDefinition, list[int] | TidemarkError]]:
    """Yield each table with the numbers of its due windows, in order, or with the error that prevents finding them. If
    the last call found no due window of a table, the table is left out until its input may have changed (see
    `NothingDue`). Raises LakeError if the tracking log or `heartbeat_diffs` cannot be read."""
    settings, watermark = lake.settings, lake.state(TABLES).watermark
    closed = lake.kept_windows(TABLES).closed(None if watermark is None else min(watermark, now))
    current = lake.of(TABLES).diffs().table.current()
    version = -1 if current is None else current.version()
    looks = [(table, lake.kept.get((TABLES, table.name, "nothing_due"), NothingDue)) for table in tables]
    left = [(table, look) for table, look in looks if not look.holds((closed, version, table.lookback), now)]
    if not left:
        return
    followed = Followed.read(lake.of(TABLES), settings.windowing, closed)
    for table, look in left:
        try:
            made = lake.of(TABLES).own_table(table.name).made()
        except TidemarkError as error:
            yield table, error
            continue
        due = followed.due(table.windowing(settings.windows), made)
        look.note((closed, version, table.lookback), now, is_due=bool(due))
        yield table, due


def tables_sensor(
    settings: Settings, clock: Clock, tables: Mapping[str, TableDefinition], jobs: Jobs
) -> dg.SensorDefinition:
    usable = dict(tables)

    @ticking_sensor(
        settings,
        TABLES,
        jobs=jobs,
        description=f"Requests runs over the due windows of {', '.join(tables)}: closed ones that are not computed, or "
        f"were computed before {HEARTBEAT_DIFFS.to_user_string()} was recomputed.",
    )
    def own_tables(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | str:
        runs, requests, said = Runs(context.instance, settings), list[dg.RunRequest](), list[str]()
        marks, free = {name: _mark(settings, loaded) for name, loaded in tables.items()}, list[TableDefinition]()
        for name, loaded in tables.items():
            try:
                usable[name] = _usable(settings, loaded, usable[name])
            except TidemarkError as error:  # the next run will raise it
                context.log.error("%s: runs will fail until this is corrected: %s", name, error)
                said.append(f"{name}: {error}")
            ran_it = partial(_ran, marks[name])
            pause = pause_of(runs, compute_job(name), clock.now(), longest=LONGEST_PAUSE, counts=ran_it)
            said += [f"{name}: {pause}"] if pause else []
            free += [] if pause else [usable[name]]
        for table, due in due_windows(lake, free, clock.now()):
            if isinstance(due, TidemarkError):
                context.log.error("the due windows of %s cannot be determined: %s", table.name, due)
                said.append(f"{table.name}: {due}")
            elif due:
                windowing = table.windowing(settings.windows)
                job, mark = compute_job(table.name), marks[table.name]
                attempts = ended_attempts(runs, windowing, job, partial(_ran, mark))
                newest_first = (range(number, number + 1) for number in reversed(due))
                chosen, resting = take_turn(newest_first, attempts, clock.now(), WINDOWS_PER_RUN)
                said += [f"{table.name}: {resting_sentence(resting, windowing)}"] if resting else []
                if not chosen:
                    continue
                newest = [windowing.numbered(number) for number in sorted(chosen)]
                context.log.info(
                    "%s: computing %d of %d windows, from %s on", table.name, len(newest), len(due), newest[0]
                )
                requests.append(run_over(settings, job, newest, {DEFINITION: mark}))
        why = "; ".join(said) or "every closed window is computed"
        return dg.SensorResult(run_requests=requests) if requests else why

    return own_tables
