"""Requests for runs: over closed windows that are not computed yet, and over stale windows, one run at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from assets.turns import Attempt, take_turn
from pipeline.services.dagster_names import COMPUTE_WINDOWS, RANGE_END, RANGE_START
from pipeline.windows import Window, due
from resources.lake import LakeResource

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=1)
"""The pause before any run after one failure, which doubles with each further failure in a row, and its limit. A window
that failed itself rests longer: see `take_turn`."""

FAILURES_COUNTED = 10
"""Newest runs that are read to count failures in a row."""

RUNS_LOOKED_AT = 100
"""Newest ended runs that tell which windows keep failing."""

ONE_WINDOW = "dagster/partition"
"""The tag of a run over one partition, as the UI starts it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run over a contiguous range of windows, and a sentence that says why; without windows, why there is none."""

    windows: Sequence[Window]
    sentence: str

    def result(
        self,
        context: dg.SensorEvaluationContext,
        said: str,
        events: Sequence[dg.AssetMaterialization | dg.AssetCheckEvaluation],
        cursor: str | None = None,
    ) -> dg.SensorResult:
        """What a sensor returns: the run, or after what it `said` why it requests none.

        The run has no run key: a window whose run failed must be requested again.
        """
        if not self.windows:
            skipped = dg.SkipReason(f"{said}{self.sentence}")
            return dg.SensorResult(skip_reason=skipped, asset_events=events, cursor=cursor)
        context.log.info(self.sentence)
        run = dg.RunRequest(tags={RANGE_START: self.windows[0].key, RANGE_END: self.windows[-1].key})
        return dg.SensorResult(run_requests=[run], asset_events=events, cursor=cursor)


def next_request(
    instance: dg.DagsterInstance, lake: LakeResource, user: str, watermark: datetime | None, now: datetime
) -> Request:
    """Request the first stretch of closed windows that are not computed and do not rest.

    A window that ends in the future by this machine's clock is left for later, even if the sources' clocks are ahead:
    Dagster has no partition for it yet.
    """
    if (pause := pause_of(instance, COMPUTE_WINDOWS, now)) is not None:
        return Request((), pause)
    heartbeats = lake.heartbeats(user)
    closed = lake.kept_windows().closed(heartbeats, None if watermark is None else min(watermark, now))
    if not closed:
        return Request((), "no window is closed yet")
    wanted = due(closed, lake.diffs(user).computed(), heartbeats.hours())
    if not wanted:
        return Request((), "every closed window is computed")
    return _requested(instance, lake, wanted, now, f"of {len(wanted)} windows that closed")


def stale_request(instance: dg.DagsterInstance, lake: LakeResource, stale: Sequence[Window], now: datetime) -> Request:
    """Request the first stretch of these stale windows that do not rest."""
    if not stale:
        return Request((), "no stale window is to be computed again")
    if (pause := pause_of(instance, COMPUTE_WINDOWS, now)) is not None:
        return Request((), pause)
    return _requested(instance, lake, stale, now, f"of {len(stale)} stale windows again")


def _requested(
    instance: dg.DagsterInstance, lake: LakeResource, wanted: Sequence[Window], now: datetime, of_which: str
) -> Request:
    turn = take_turn(sorted(wanted), _attempts(instance), now, lake.settings.windows.max_windows_per_run)
    rest = turn.sentence
    if not turn.windows:
        return Request((), rest)
    sentence = f"computing {len(turn.windows)} {of_which}, from {turn.windows[0]} on"
    return Request(turn.windows, f"{sentence}; {rest}" if rest else sentence)


def _attempts(instance: dg.DagsterInstance) -> list[Attempt]:
    """The newest runs over windows that have succeeded or failed, newest first."""
    ended = dg.RunsFilter(job_name=COMPUTE_WINDOWS, statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE])
    found = []
    for record in instance.get_run_records(ended, limit=RUNS_LOOKED_AT):
        tags = record.dagster_run.tags
        first = tags.get(RANGE_START) or tags.get(ONE_WINDOW)
        if first is not None:
            failed = record.dagster_run.status is dg.DagsterRunStatus.FAILURE
            found.append(Attempt(first, tags.get(RANGE_END) or first, failed, ended_at(record)))
    return found


def ended_at(record: dg.RunRecord) -> datetime:
    """When a run ended; if Dagster has not noted that, when it was created."""
    return datetime.fromtimestamp(record.end_time or record.create_timestamp.timestamp(), UTC)


def pause_of(
    instance: dg.DagsterInstance, job_name: str, now: datetime, does: str = "is computing windows"
) -> str | None:
    """Why no run may be requested now: one is under way (`does` says what it does), or the last ones failed too
    recently. None if one may."""
    under_way = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=NOT_FINISHED_STATUSES), limit=1)
    if under_way:
        return f"run {under_way[0].dagster_run.run_id[:8]} {does}"
    latest = instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=FAILURES_COUNTED)
    failures = list(takewhile(lambda record: record.dagster_run.status is dg.DagsterRunStatus.FAILURE, latest))
    if not failures:
        return None
    pause = min(FIRST_PAUSE * 2 ** (len(failures) - 1), LONGEST_PAUSE)
    if now - ended_at(failures[0]) < pause:
        return f"the last {len(failures)} runs failed; the next is tried {pause} after the last"
    return None
