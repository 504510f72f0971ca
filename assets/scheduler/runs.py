"""Finds the runs of this pipeline's jobs, and the windows that they compute. The Dagster instance may also have other
pipelines, with jobs of the same names."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg

from tidemark.assets.partitions import stretches_asked
from tidemark.assets.scheduler.turns import Attempt, Attempts
from tidemark.pipeline.clock import format_duration, is_recent
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.orchestrator.names import BACKLOG, COMPUTE_WINDOWS, PIPELINE, WINDOWS, name_of, pipeline_tag
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Spans, Windowing

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = tuple(status for status in dg.DagsterRunStatus if status not in FINISHED)
"""All statuses that are not in FINISHED, including those that a later Dagster adds."""

FEWEST = 100
"""Minimum number of runs per database query, because the answer may include other pipelines' runs."""

RUNS_LOOKED_AT = 200
"""Number of the most recently ended runs in which the failures of windows are counted."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of this pipeline's jobs in `instance`."""

    instance: dg.DagsterInstance
    settings: Settings

    def newest(
        self, job_name: str, limit: int, statuses: Sequence[dg.DagsterRunStatus] | None = None
    ) -> Sequence[dg.RunRecord]:
        """Return the newest runs of a job, newest first. With `statuses`, return only runs that have one of these
        statuses."""
        return self._ours(limit, name_of(self.settings, job_name), statuses=statuses)

    def updated(
        self, statuses: Sequence[dg.DagsterRunStatus], limit: int, after: datetime | None
    ) -> Sequence[dg.RunRecord]:
        """Return at most `limit` runs of any job. With `after`, these are the first runs that changed after that
        moment, oldest change first. If it is None, these are the runs that changed last, newest change first."""
        return self._ours(limit, None, "update_timestamp", after is not None, statuses=statuses, updated_after=after)

    def ended(self, statuses: Sequence[dg.DagsterRunStatus], limit: int) -> Sequence[dg.RunRecord]:
        """Return the runs of any job that ended last, newest end first, at most `limit`. Tagging a run later, which
        updates it, does not change this order."""
        return self._ours(limit, None, "end_time", statuses=statuses)

    def finished_before(self, moment: datetime, at_most: int) -> Sequence[str]:
        """Return the ids of at most `at_most` runs, of any job, that finished before a moment."""
        wanted = dg.RunsFilter(tags=self._tag, statuses=FINISHED, updated_before=moment)
        return self.instance.get_run_ids(wanted, limit=at_most)

    @property
    def _tag(self) -> dict[str, str]:
        return {PIPELINE: pipeline_tag(self.settings.lake.uri)}

    def _ours(
        self, limit: int, job: str | None, order: str | None = None, ascending: bool = False, **more: Any
    ) -> Sequence[dg.RunRecord]:
        """Return at most `limit` of this pipeline's runs, of any job if `job` is None.

        A query by tag reads every run that ever had the tag. So the first query omits the tag. If other runs fill
        its answer, a second query uses the tag. For unfinished runs, which are few, the first also omits the job."""
        ask = partial(self.instance.get_run_records, order_by=order, ascending=ascending)
        at_most, are_few = max(limit, FEWEST), set(more["statuses"] or FINISHED).isdisjoint(FINISHED)
        found = ask(dg.RunsFilter(job_name=None if are_few else job, **more), at_most)
        with_tag = (one for one in found if self._tag.items() <= one.dagster_run.tags.items())
        ours = [one for one in with_tag if job in (None, one.dagster_run.job_name)]
        if len(found) < at_most or len(ours) >= limit:
            return ours[:limit]
        return ask(dg.RunsFilter(job_name=job, tags=self._tag, **more), limit)


def ended_attempts(
    runs: Runs,
    windowing: Windowing,
    job_name: str = COMPUTE_WINDOWS,
    counts: Callable[[dg.RunRecord], bool] = lambda _: True,
) -> Attempts:
    """Return the newest succeeded and failed runs of a job over windows, newest first. A failed run is left out
    if `counts` is false for it, or if it lacks the tag WINDOWS (it was refused before it computed anything)."""
    success, failure = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE
    counted = (
        record
        for record in runs.newest(job_name, RUNS_LOOKED_AT, [success, failure])
        if record.dagster_run.status is success or (WINDOWS in record.dagster_run.tags and counts(record))
    )
    found = (attempt_of(record, windowing, ended_at(record)) for record in counted)
    return sorted(found, key=lambda attempt: attempt.ended_at, reverse=True)


def attempt_of(record: dg.RunRecord, windowing: Windowing, until: datetime) -> Attempt:
    """Convert a run's record to an `Attempt`. `until` is when the run ended, or the current time. The attempt has no
    windows if they cannot be read, for example because windows had a different length."""
    run, windows = record.dagster_run, Spans()
    config: Any = run.run_config
    with suppress(LookupError, ValueError, TypeError, AttributeError):  # or its config was written by hand
        texts = [text for op in config.get("ops", {}).values() for text in op["config"]["windows"]]
        windows = Spans(*stretches_asked(texts, run.tags, windowing))
    began = datetime.fromtimestamp(record.start_time, UTC) if record.start_time else until
    return Attempt(windows, run.status is dg.DagsterRunStatus.FAILURE, began, until, BACKLOG in run.tags)


def ended_at(record: dg.RunRecord) -> datetime:
    """Return when a run ended, or when it was created if Dagster has not recorded its end."""
    return datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)


def doing(unfinished: dg.RunRecord, does: str) -> str:
    """Return a phrase about an unfinished run: that it waits in Dagster's queue or, if it does not, the words in
    `does`."""
    waits = unfinished.dagster_run.status is dg.DagsterRunStatus.QUEUED
    return f"run {unfinished.dagster_run.run_id[:8]} {'waits in the queue of runs' if waits else does}"


def is_held(unfinished: dg.RunRecord, since: datetime) -> bool:
    """Return True if an unfinished run has waited in Dagster's queue since this moment."""
    return unfinished.dagster_run.status is dg.DagsterRunStatus.QUEUED and unfinished.create_timestamp < since


LONGEST_RUN = timedelta(hours=3)
"""A run that began longer ago than this counts as dead, because `max_runtime_seconds` in dagster.yaml ends a run
earlier."""

SILENT_FOR = timedelta(minutes=5)
"""A started run that logs nothing for this long counts as dead. Signs of life come every minute, and clocks may differ
by a minute or two. After the same time, a run that Dagster has created but not queued counts as dead too."""

STARTS_WITHIN = timedelta(minutes=30)
"""A launched run that has not started within this time counts as dead. A launcher may have to add a machine to a
cluster and pull an image."""

LOOKED_AT = 20
"""Maximum number of unfinished runs that are checked per job, newest first. Sensors request one run at a time, so there
are few. It is also the number of ended runs that `report_lost` reads first."""

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
    """Return why an unfinished run counts as dead, or None if it does not. A queued run never counts as dead, because a
    run that replaced it would wait in the same queue."""
    status = record.dagster_run.status
    if record.start_time is not None and now.timestamp() - record.start_time > LONGEST_RUN.total_seconds():
        return f"it began more than {format_duration(LONGEST_RUN)} ago, and no run of tidemark takes that long"
    if status is dg.DagsterRunStatus.STARTING and _last_heard(instance, record, now) < now - STARTS_WITHIN:
        return f"its launcher has not started it within {format_duration(STARTS_WITHIN)}"
    if status is dg.DagsterRunStatus.NOT_STARTED and _last_heard(instance, record, now) < now - SILENT_FOR:
        return (
            f"Dagster created it, but did not queue it within {format_duration(SILENT_FOR)}: Dagster's storage failed"
        )
    if status in AT_WORK and _last_heard(instance, record, now) < now - SILENT_FOR:
        return f"it has logged nothing for {format_duration(SILENT_FOR)}: its process has ended or is stuck"
    return None


def is_heard(instance: dg.DagsterInstance, record: dg.RunRecord, now: datetime) -> bool:
    """Return True if a run gave a sign of life within SILENT_FOR of `now`. A sign further in the future does not count:
    the clock was set back, and the run may be dead."""
    return any(is_recent(moment, now, SILENT_FOR) for moment in _heard(instance, record))


_ahead = Kept(at_most=RUNS_LOOKED_AT)
"""The times at which this process first saw signs of life whose timestamps are in the future, as after a clock was set
back. The key is a run's id and its signs of life."""


def _last_heard(instance: dg.DagsterInstance, record: dg.RunRecord, now: datetime) -> datetime:
    """Return the time of a run's last sign of life or, if that is in the future, when this process first saw it."""
    heard = _heard(instance, record)
    if max(heard) <= now:
        return max(heard)
    return min(_ahead.get((record.dagster_run.run_id, *heard), lambda: now), now)


def _heard(instance: dg.DagsterInstance, record: dg.RunRecord) -> list[datetime]:
    newest = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    heard = [record.update_timestamp.timestamp(), *(event.timestamp for event in newest)]
    return [datetime.fromtimestamp(at, UTC) for at in heard]
