"""Which windows to compute next: the closed ones that the lake does not hold, one run at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from pipeline.lake.diffs import HeartbeatDiffs
from pipeline.lake.heartbeats import Heartbeats
from pipeline.services.dagster_names import RANGE_END, RANGE_START
from pipeline.windows import Window, Windowing, due, runs_of_neighbours

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10)
FAILURES_COUNTED = 10


@dataclass(frozen=True, slots=True)
class Request:
    """A run over a contiguous range of windows, or a sentence that says why none is wanted."""

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
    max_windows: int,
) -> Request:
    """The first stretch of closed windows that are not computed. Reads the lake alone.

    A window whose end is still to come by the clock is left for later, however fast the sources' clocks run:
    Dagster's partitions end now.
    """
    since = heartbeats.extent().oldest_event_time
    if watermark is None or since is None:
        return Request((), "no window is closed yet")
    closed = windowing.closed_at(min(watermark, now), since)
    wanted = due(closed, diffs.computed(), heartbeats.hours())
    if not wanted:
        return Request((), "every closed window is computed")
    stretch = runs_of_neighbours(wanted)[0][:max_windows]
    return Request(stretch, f"computing {len(stretch)} of {len(wanted)} windows that closed, from {stretch[0]} on")


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
