"""Detects runs whose process has died, without help from the launcher: the instance may use any.

A run's own log is its heartbeat. While a run is at work, it logs a sign of life every minute. A run that logs nothing
for several minutes counts as dead and is reported as failed, so that sensors, retries and the queue continue. If it is
alive after all, it may run alongside the next run: windows are replaced behind a fence, and a subscription may have
many readers.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from tidemark.assets.scheduler.runs import UNFINISHED, Runs
from tidemark.pipeline.clock import format_duration

LONGEST_RUN = timedelta(hours=3)
"""Longer than any run takes: `max_runtime_seconds` in dagster.yaml ends runs earlier."""

SILENT_FOR = timedelta(minutes=5)
"""A run at work that logs nothing for this long is dead. It covers several signs of life, and clocks that differ by a
minute or two."""

STARTS_WITHIN = timedelta(minutes=30)
"""Longest time a launcher may take to start a run: a cluster may have to add a machine and pull the image."""

LOOKED_AT = 20
"""Unfinished runs of a job that are checked, newest first. The sensors request one at a time."""

STARTING = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
AT_WORK = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def report_dead(runs: Runs, job_name: str, now: datetime) -> list[dg.RunRecord]:
    """Report a job's dead runs as failed, or as canceled if cancellation was requested. Return the other unfinished
    runs, newest first."""
    alive = []
    for record in runs.newest(job_name, LOOKED_AT, UNFINISHED):
        if (why := why_dead(runs.instance, record, now)) is None:
            alive.append(record)
            continue
        run = runs.instance.get_run_by_id(record.dagster_run.run_id)
        if run is None or run.status is not record.dagster_run.status:  # it has ended meanwhile
            continue
        if run.status is dg.DagsterRunStatus.CANCELING:
            runs.instance.report_run_canceled(run, why)
        else:
            runs.instance.report_run_failed(run, why)
    return alive


def why_dead(instance: dg.DagsterInstance, record: dg.RunRecord, now: datetime) -> str | None:
    """Return why an unfinished run counts as dead; None if it does not. A queued run never does: its queue is busy, and
    a second run would wait as well."""
    status = record.dagster_run.status
    if record.start_time is not None and now.timestamp() - record.start_time > LONGEST_RUN.total_seconds():
        return f"it began more than {format_duration(LONGEST_RUN)} ago, longer than any run of tidemark takes"
    if status in STARTING and _heard_at(instance, record) < now - STARTS_WITHIN:
        return f"its launcher has not started it within {format_duration(STARTS_WITHIN)}"
    if status in AT_WORK and _heard_at(instance, record) < now - SILENT_FOR:
        return f"it has said nothing for {format_duration(SILENT_FOR)}: its process must be gone"
    return None


def _heard_at(instance: dg.DagsterInstance, record: dg.RunRecord) -> datetime:
    """Return the time of the last event of the run, or of its launcher."""
    changed_at = record.update_timestamp.timestamp()
    newest = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    return datetime.fromtimestamp(max([changed_at, *(event.timestamp for event in newest)]), UTC)
