"""Which windows to compute next: the closed ones that the lake does not hold, then the stale ones, a run at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.turns import Attempt, take_turn
from pipeline.lake.tables.diffs import HeartbeatDiffs
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.kept_windows import KeptWindows
from pipeline.services.dagster_names import RANGE_END, RANGE_START
from pipeline.windows import Window, Windowing, due

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=1)
"""Between any two runs, after failures in a row. A window that failed itself rests longer: see `take_turn`."""
FAILURES_COUNTED = 10
RUNS_LOOKED_AT = 100
ONE_WINDOW = "dagster/partition"
"""The tag of a run over one partition, as the UI starts it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run over a contiguous range of windows, and in a sentence why, or why none is wanted."""

    windows: Sequence[Window]
    sentence: str

    def as_run_request(self) -> dg.RunRequest:
        """One run over the whole range. No run key: a window whose run failed must be asked for again."""
        first, last = self.windows[0].key, self.windows[-1].key
        return dg.RunRequest(tags={RANGE_START: first, RANGE_END: last})


def next_request(
    watermark: datetime | None,
    now: datetime,
    *,
    windowing: Windowing,
    heartbeats: Heartbeats,
    diffs: HeartbeatDiffs,
    kept: KeptWindows,
    attempts: Sequence[Attempt],
    max_windows: int,
) -> Request:
    """The first stretch of closed windows that are not computed and do not rest. Reads the lake alone.

    A window whose end is still to come by the clock is left for later, however fast the sources' clocks run:
    Dagster's partitions end now.
    """
    since = kept.begin(heartbeats.extent().oldest_event_time)
    if watermark is None or since is None:
        return Request((), "no window is closed yet")
    closed = windowing.closed_at(min(watermark, now), since)
    wanted = due(closed, diffs.computed(), heartbeats.hours())
    if not wanted:
        return Request((), "every closed window is computed")
    return _requested(wanted, attempts, now, max_windows, f"of {len(wanted)} windows that closed")


def stale_request(stale: Sequence[Window], now: datetime, *, attempts: Sequence[Attempt], max_windows: int) -> Request:
    """The first stretch of stale windows that do not rest: these windows and no others."""
    if not stale:
        return Request((), "no stale window is to be computed again")
    return _requested(stale, attempts, now, max_windows, f"of {len(stale)} stale windows again")


def _requested(
    wanted: Sequence[Window], attempts: Sequence[Attempt], now: datetime, max_windows: int, of_which: str
) -> Request:
    turn = take_turn(sorted(wanted), attempts, now, max_windows)
    rest = turn.sentence
    if not turn.windows:
        return Request((), rest)
    sentence = f"computing {len(turn.windows)} {of_which}, from {turn.windows[0]} on"
    return Request(turn.windows, f"{sentence}; {rest}" if rest else sentence)


def attempts_of(instance: dg.DagsterInstance, job_name: str) -> list[Attempt]:
    """The newest runs of the job that have succeeded or failed, newest first."""
    ended = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    found = []
    for record in instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=ended), limit=RUNS_LOOKED_AT):
        tags = record.dagster_run.tags
        first = tags.get(RANGE_START) or tags.get(ONE_WINDOW)
        if first is not None:
            at = record.end_time or record.create_timestamp.timestamp()
            failed = record.dagster_run.status is dg.DagsterRunStatus.FAILURE
            found.append(Attempt(first, tags.get(RANGE_END) or first, failed, datetime.fromtimestamp(at, UTC)))
    return found


def pause_of(instance: dg.DagsterInstance, job_name: str, now: datetime) -> str | None:
    """Why no run is to be requested just now: one is under way, or the last ones failed too recently."""
    under_way = instance.get_run_records(dg.RunsFilter(job_name=job_name, statuses=UNFINISHED), limit=1)
    if under_way:
        return f"run {under_way[0].dagster_run.run_id[:8]} is computing windows"
    latest = instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=FAILURES_COUNTED)
    failures = 0
    for record in latest:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failures += 1
    if not failures:
        return None
    ended = latest[0].end_time or latest[0].create_timestamp.timestamp()
    pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
    if now.timestamp() - ended < pause.total_seconds():
        return f"the last {failures} runs failed; the next is tried {pause} after the last"
    return None
