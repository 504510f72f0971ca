"""The job `housekeeping`, which keeps the lake and Dagster's own storage small, and its schedule.

Dagster itself keeps the events of ticks, which come every few seconds for ever, and finished runs. It has no
command to delete events by age (wiping an asset deletes all of them), so this module uses its tables. A tick's events
belong to no run. The newest event of each asset and check stays, however old it is.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage
from sqlalchemy import Table, delete, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.upkeep.housekeeping import Chore, Housekeeper

HOUSEKEEPING = "housekeeping"

KEEPS_SMALL = "Keeps the lake and Dagster's own storage from growing without end."

ROWS_AT_ONCE = 500
"""Rows deleted in one transaction: few, so that a tick that reports meanwhile waits only briefly."""

RUNS_AT_ONCE = 100

Connect = Callable[[], AbstractContextManager[Connection]]


class HousekeepingConfig(dg.Config):
    """With `dry_run` the job says what it would do, and changes nothing."""

    dry_run: bool = False


def housekeeping_job(settings: Settings) -> dg.JobDefinition:
    @dg.op(out=dg.Out(dg.Nothing))
    def keep_house(context: dg.OpExecutionContext, config: HousekeepingConfig) -> Iterator[dg.Output[None]]:
        """Removes what is no longer kept, archives old entries of the tracking log, rewrites small files as sorted
        larger ones, deletes earlier versions and orphans, and prunes Dagster's own events. It can be killed at any
        point, and runs beside everything else."""
        figures, failed = Counter[str](), []
        for chore in _chores(settings, context, dry_run=config.dry_run):
            if chore.failed is not None:
                context.log.error(chore.sentence)
                failed.append(chore.sentence)
            elif chore.is_idle:
                context.log.debug(chore.sentence)
            else:
                context.log.info(f"would have: {chore.sentence}" if config.dry_run else chore.sentence)
            figures.update({f"{chore.name}/{chore.about}/{name}": count for name, count in chore.figures.items()})
        if failed:
            raise dg.Failure(description="; ".join(failed), metadata=dict(figures), allow_retries=False)
        yield dg.Output(None, metadata=dict(figures))

    @dg.job(name=HOUSEKEEPING, description=KEEPS_SMALL)
    def housekeeping() -> None:
        keep_house()

    return housekeeping


def housekeeping_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every hour, from the start."""
    return dg.ScheduleDefinition(
        name="hourly_housekeeping",
        job=job,
        cron_schedule="7 * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=KEEPS_SMALL,
    )


def _chores(settings: Settings, context: dg.OpExecutionContext, *, dry_run: bool) -> Iterator[Chore]:
    clock, keep = SystemClock(), settings.housekeeping
    yield from Housekeeper(settings, clock, dry_run=dry_run).chores()
    if keep.dagster_events is not None and not dry_run:
        figures = prune_events(context.instance, clock.now() - keep.dagster_events)
        says = "this event log storage is of a kind that is not pruned"
        if figures:
            says = f"deleted {figures['events']} events of ticks and {figures['evaluations']} evaluations of checks"
        yield Chore("Dagster", "events", says, figures, is_idle=not any(figures.values()))
    if keep.dagster_runs is not None and not dry_run:
        runs = prune_runs(context.instance, clock.now() - keep.dagster_runs, but=context.run_id)
        yield Chore("Dagster", "runs", f"deleted {runs} runs", {"runs": runs}, is_idle=not runs)


def prune_events(instance: dg.DagsterInstance, before: datetime) -> dict[str, int]:
    """Delete what ticks reported before a moment, except the newest of each asset and check.

    Returns how many events of ticks and evaluations of their checks; nothing if the kind of storage is unknown.
    It is safe to kill, and to run beside ticks. The space is reused; a SQLite file does not shrink.
    """
    storage: Any = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return {}
    moment = before.astimezone(UTC).replace(tzinfo=None)  # as Dagster stores it
    connects: list[Connect] = [storage.index_connection]
    if storage.is_run_sharded:
        connects.append(lambda: storage.run_connection(RUNLESS_RUN_ID))
    events, evaluations = SqlEventLogStorageTable, AssetCheckExecutionsTable
    old = (events.c.run_id == RUNLESS_RUN_ID) & (events.c.timestamp < moment)
    deleted = [
        _delete_old(connect, events, old, (events.c.asset_key, events.c.dagster_event_type)) for connect in connects
    ]
    old = (evaluations.c.run_id == RUNLESS_RUN_ID) & (evaluations.c.evaluation_event_timestamp < moment)
    alike = evaluations.c.asset_key, evaluations.c.check_name
    return {"events": deleted[0], "evaluations": _delete_old(storage.index_connection, evaluations, old, alike)}


def prune_runs(instance: dg.DagsterInstance, before: datetime, but: str) -> int:
    """Delete the runs that finished before a moment, with their events and logs; the number. `but` is this run."""
    deleted = 0
    wanted = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=before)
    while found := [run.run_id for run in instance.get_runs(wanted, limit=RUNS_AT_ONCE) if run.run_id != but]:
        for run_id in found:
            instance.delete_run(run_id)
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            if isinstance(instance.event_log_storage, SqliteEventLogStorage):
                with suppress(FileNotFoundError):
                    Path(instance.event_log_storage.path_for_shard(run_id)).unlink()
        deleted += len(found)
    return deleted


def _delete_old(connect: Connect, table: Table, old: ColumnElement[bool], alike: tuple[ColumnElement[Any], ...]) -> int:
    """Delete the rows that are `old`, except the newest of each group with equal columns `alike`; the number."""
    with connect() as connection:
        newest = [row[0] for row in connection.execute(select(func.max(table.c.id)).group_by(*alike))]
    deleted = 0
    while True:
        with connect() as connection:
            wanted = select(table.c.id).where(old, table.c.id.not_in(newest)).order_by(table.c.id).limit(ROWS_AT_ONCE)
            ids = [row[0] for row in connection.execute(wanted)]
            if not ids:
                return deleted
            connection.execute(delete(table).where(table.c.id.in_(ids)))
            if table is SqlEventLogStorageTable:
                connection.execute(delete(AssetEventTagsTable).where(AssetEventTagsTable.c.event_id.in_(ids)))
        deleted += len(ids)
