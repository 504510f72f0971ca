"""The sensor that requests runs over the due windows of custom tables."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

import dagster as dg

from tidemark.assets.catalog import HEARTBEAT_DIFFS
from tidemark.assets.jobs.loaded_tables import LoadedTables
from tidemark.assets.scheduler.requests import NothingDue, pause_of, run_over
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.watching import Jobs, ticking_sensor
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.compute.table_definition import TableDefinition
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.orchestrator.names import DEFINITION, compute_job
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import WINDOWS_PER_RUN
from tidemark.resources.keys import LAKE, keys_of, lake_of
from tidemark.resources.lake import LakeResource

TABLES = "tables"
"""The sensor's name, and the `user` of the lake's parts that it reads."""

LONGEST_PAUSE = timedelta(minutes=10)
"""Longest pause until a table whose runs keep failing is tried again. If its file changes, it is tried again at
once."""


def due_windows(
    lake: LakeResource, tables: Iterable[TableDefinition], now: datetime
) -> Iterator[tuple[TableDefinition, list[int] | TidemarkError]]:
    """Yield tables with the numbers of their due windows, in order, or with the error that hides them. Tables without
    due windows are skipped while nothing changes. Raises LakeError if `heartbeat_diffs` itself cannot be read."""
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
        f"were computed before {HEARTBEAT_DIFFS.to_user_string()} was recomputed.",
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
