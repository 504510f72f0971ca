"""Deletes what Dagster itself keeps: the events of ticks, which come every few seconds for ever, and finished runs.

Dagster has no command to delete events by age (wiping an asset deletes all of them), so this module uses its tables. A
tick's events belong to no run. The newest event of each asset and check stays, however old it is.
"""

from collections.abc import Callable
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

ROWS_AT_ONCE = 500
"""Rows deleted in one transaction: few, so that a tick that reports meanwhile waits only briefly."""

RUNS_AT_ONCE = 100

Connect = Callable[[], AbstractContextManager[Connection]]


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
