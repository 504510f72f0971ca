"""The job `housekeeping`, which keeps the lake and Dagster's own storage small, and its schedule.

Ticks report events to Dagster every few seconds, and Dagster keeps events and finished runs forever. Dagster has no
command to delete events by age, so this module deletes rows from Dagster's tables. The newest event of each asset and
check is kept, whatever its age. If this Dagster lacks a needed table or column, no event is deleted, and the run
reports that.

Other pipelines may share the instance, so only events and runs of this pipeline are deleted.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from sqlalchemy import MetaData, Table, delete, func, inspect, select, union
from sqlalchemy.engine import Connection

from tidemark.assets.catalog import ASSETS, key_of
from tidemark.assets.jobs.job import job_of, schedule_of
from tidemark.assets.scheduler.runs import Runs
from tidemark.local.services.ownership import Ownership
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import DagsterPartMissing
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.housekeeping import Chore, Housekeeper
from tidemark.resources import private

HOUSEKEEPING = "housekeeping"

EVENTS_KEPT = timedelta(days=2)
"""Retention of ticks' events, which take about 80 MB a day. The newest of each asset and check is always kept."""

ROWS_AT_ONCE = 500
"""Number of rows deleted per transaction: few, so that a tick that reports at the same time waits only briefly."""

RUNS_AT_ONCE = 100

OF_NO_RUN = ""
"""The run id of events that belong to no run, such as those of ticks."""


class HousekeepingConfig(dg.Config):
    """The job's options. With `dry_run`, the job reports what it would do and changes nothing."""

    dry_run: bool = False


def housekeeping_job(settings: Settings, *, has_tables: bool = False) -> dg.JobDefinition:
    """Define the job. `has_tables` is True if custom tables exist that the settings do not name."""

    @job_of(settings, HOUSEKEEPING, "keep_house")
    def housekeeping(context: dg.OpExecutionContext, config: HousekeepingConfig) -> Iterator[dg.Output[None]]:
        """Keeps the lake and Dagster's own storage from growing without limit. Removes expired data, archives old
        entries of the tracking log, compacts small files into larger sorted ones, deletes old table versions and
        orphaned files, and prunes Dagster's own events. It can run at any time and be killed at any point."""
        figures, failed, skipped = Counter[str](), [], dict[str, str]()
        for chore in _chores(settings, context, dry_run=config.dry_run, has_tables=has_tables):
            if chore.failed is not None:
                context.log.error(chore.sentence)
                failed.append(chore.sentence)
            elif chore.skipped is not None:
                context.log.warning(chore.sentence)
                skipped[f"{chore.name}/{chore.about}/skipped"] = chore.skipped
            elif chore.is_idle:
                context.log.debug(chore.sentence)
            else:
                context.log.info(f"dry run, nothing done: {chore.sentence}" if config.dry_run else chore.sentence)
            figures.update({f"{chore.name}/{chore.about}/{name}": count for name, count in chore.figures.items()})
        if failed:
            raise dg.Failure(description="; ".join(failed), metadata={**figures, **skipped}, allow_retries=False)
        yield dg.Output(None, metadata={**figures, **skipped})

    return housekeeping


def housekeeping_schedule(settings: Settings, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Define the hourly schedule, which is on by default."""
    return schedule_of(settings, "hourly_housekeeping", "7 * * * *", job)


def _chores(settings: Settings, context: dg.OpExecutionContext, *, dry_run: bool, has_tables: bool) -> Iterator[Chore]:
    clock, keep = SystemClock(), settings.housekeeping
    Ownership(settings, clock).allow()
    yield from Housekeeper(settings, clock, dry_run=dry_run, has_tables=has_tables).chores()
    if not dry_run:
        yield _prune_or_skip(context.instance, settings, clock.now() - EVENTS_KEPT)
    if keep.dagster_runs is not None and not dry_run:
        runs = prune_runs(Runs(context.instance, settings), clock.now() - keep.dagster_runs, but=context.run_id)
        yield Chore("Dagster", "runs", f"runs deleted: {runs}", {"runs": runs}, is_idle=not runs)


def _prune_or_skip(instance: dg.DagsterInstance, settings: Settings, before: datetime) -> Chore:
    try:
        figures = prune_events(instance, settings, before)
    except DagsterPartMissing as error:
        return Chore("Dagster", "events", "", skipped=str(error))
    says = "events were not deleted: this kind of event log storage is not supported"
    if figures:
        says = f"events of ticks deleted: {figures['events']}; evaluations of checks deleted: {figures['evaluations']}"
    return Chore("Dagster", "events", says, figures, is_idle=not any(figures.values()))


def prune_events(instance: dg.DagsterInstance, settings: Settings, before: datetime) -> dict[str, int]:
    """Delete the events that this pipeline's ticks reported before a moment, except the newest of each asset and check.
    Events of partitions stay, because they record which partitions are materialized.

    Returns the numbers of deleted events and check evaluations; empty if the kind of storage is unknown. The process
    may be killed at any point, and ticks may run at the same time. A SQLite file does not shrink, but its freed space
    is reused. Raises DagsterPartMissing, before anything is deleted, if Dagster lacks a needed name, table or column.
    """
    if why := private.why_missing(private.EVENTS):
        raise DagsterPartMissing(why)
    storage: Any = instance.event_log_storage
    if not isinstance(storage, private.SqlEventLogStorage):
        return {}
    ours = [key_of(settings, key).to_string() for key in ASSETS]  # as the tables name them
    moment = before.astimezone(UTC).replace(tzinfo=None)  # as Dagster stores it
    with storage.index_connection() as connection:
        events, tags, evaluations = _tables(connection)
        of_event = evaluations.c.evaluation_event_storage_id
        reported = (events.c.run_id == OF_NO_RUN) & events.c.asset_key.in_(ours) & events.c.partition.is_(None)
        evaluated = (evaluations.c.run_id == OF_NO_RUN) & evaluations.c.asset_key.in_(ours) & of_event.is_not(None)
        kinds = (events.c.asset_key, events.c.dagster_event_type), (evaluations.c.asset_key, evaluations.c.check_name)
        newest = union(
            select(func.max(events.c.id)).where(reported).group_by(*kinds[0]),
            select(func.max(of_event)).where(evaluated).group_by(*kinds[1]),
        )
        stay = list(connection.scalars(newest))
    is_ours = reported | events.c.id.in_(select(of_event).where(evaluated))
    old = select(events.c.id, events.c.event).where(is_ours, events.c.timestamp < moment, events.c.id.not_in(stay))
    figures = {"events": 0, "evaluations": 0}
    while True:
        with storage.index_connection() as connection:
            rows = connection.execute(old.limit(ROWS_AT_ONCE)).all()
        if not rows:
            return figures
        ids, texts = zip(*rows, strict=True)
        if storage.is_run_sharded:  # ids differ in this file; after a kill the index still has the rows
            with storage.run_connection(OF_NO_RUN) as connection:
                connection.execute(delete(events).where(events.c.event.in_(texts)))
        with storage.index_connection() as connection:
            figures["evaluations"] += connection.execute(delete(evaluations).where(of_event.in_(ids))).rowcount
            connection.execute(delete(tags).where(tags.c.event_id.in_(ids)))
            figures["events"] += connection.execute(delete(events).where(events.c.id.in_(ids))).rowcount


def prune_runs(runs: Runs, before: datetime, but: str) -> int:
    """Delete this pipeline's runs that finished before a moment, with their events and logs, and return their number.
    `but` is the id of the current run, which is kept."""
    deleted, instance = 0, runs.instance
    while found := [run_id for run_id in runs.finished_before(before, RUNS_AT_ONCE) if run_id != but]:
        for run_id in found:
            instance.delete_run(run_id)
            instance.compute_log_manager.delete_logs(prefix=[run_id])
            if path_of := getattr(instance.event_log_storage, "path_for_shard", None):  # on SQLite
                Path(path_of(run_id)).unlink(missing_ok=True)
        deleted += len(found)
    return deleted


def _tables(connection: Connection) -> list[Table]:
    database, tables, without = inspect(connection), [], private.PARTS["SqlEventLogStorage"].without
    for name, columns in private.EVENT_TABLES.items():
        if not database.has_table(name):
            raise private.missing(f"table {name} in its event log", without)
        table = Table(name, MetaData(), autoload_with=connection, resolve_fks=False)
        if absent := [column for column in columns if column not in table.c]:
            raise private.missing(f"column {name}.{absent[0]} in its event log", without)
        tables.append(table)
    return tables
