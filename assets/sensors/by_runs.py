"""Metrics of ended runs, and of the messages that runs have landed and tracked. The code server reports these metrics,
because a run's process ends before its metrics could be scraped."""

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, QUARANTINED, TRACKING_HISTOGRAM, key_of
from tidemark.assets.events import ACCEPTED, REASON
from tidemark.assets.scheduler.runs import FINISHED, UNFINISHED, Runs
from tidemark.assets.sensors.watching import recorder_of, unprefixed
from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.pipeline.observe.recorder import EndedRun, Recorder
from tidemark.pipeline.settings import Settings
from tidemark.resources.lake import LakeResource

EVENTS_AT_ONCE = 500
"""Maximum number of materializations that are counted per call and asset. The next call continues."""

RUNS_AT_ONCE = 200
"""Maximum number of runs that are counted per call. The next call continues."""

OVERLAP, REMEMBERED = timedelta(seconds=5), 2000
"""Several processes write the times of runs, so a run can appear after another run that has a later time. Each call
therefore looks again at the last OVERLAP before the newest known run. The ids of the newest runs, at most REMEMBERED,
are kept, so that each run counts once."""

OF_THE_UI, BY_THE_UI = "__ASSET_JOB", "materialize"
"""The prefix that Dagster gives the names of jobs that materialize assets from the UI, and the one name that all these
jobs have in metrics."""


def tell_runs(lake: LakeResource, runs: Runs) -> None:
    """Report to the pipeline's recorder which runs have ended since the last report, and how many messages have
    been landed and tracked by runs."""
    recorder = recorder_of(lake)
    if recorder.is_on:
        recorder.by_runs(lambda: landed_by_runs(runs, lake.kept.get("landed by runs", dict[dg.AssetKey, int])))
        lake.kept.get("ended runs", EndedRuns).tell(runs, recorder, lake.clock.now())


def landed_by_runs(runs: Runs, seen: dict[dg.AssetKey, int]) -> tuple[Ingested, int]:
    """Return a summary of the messages that runs have landed since the last call, and the number that they have
    tracked. `seen` contains the id of the last counted materialization of each asset. Materializations before the
    process's first call are not counted."""
    landed = Ingested()
    for metadata in _metadata_of(runs, HEARTBEATS, seen):
        rows, late, accepted = (int(metadata.get(name, 0)) for name in ("rows", "late", ACCEPTED))
        landed += Ingested(heartbeats=rows, late=late, messages=accepted)
    for metadata in _metadata_of(runs, QUARANTINED, seen):
        reasons = {name: int(count) for name, count in metadata.items() if name.startswith(REASON)}
        rejected = Counter({RejectionReason(name.removeprefix(REASON)): count for name, count in reasons.items()})
        landed += Ingested(rejected=rejected, messages=rejected.total())
    return landed, sum(int(metadata["messages"]) for metadata in _metadata_of(runs, TRACKING_HISTOGRAM, seen))


def _metadata_of(runs: Runs, key: dg.AssetKey, seen: dict[dg.AssetKey, int]) -> list[dict[str, Any]]:
    asset, since = key_of(runs.settings, key), seen.get(key)
    wanted, is_first = dg.AssetRecordsFilter(asset_key=asset, after_storage_id=since), since is None
    found = runs.instance.fetch_materializations(wanted, 1 if is_first else EVENTS_AT_ONCE, ascending=not is_first)
    seen[key] = max([since or 0, *(record.storage_id for record in found.records)])
    if is_first:
        return []
    materialized = [record.asset_materialization for record in found.records if record.run_id]
    return [{name: value.value for name, value in one.metadata.items()} for one in materialized if one is not None]


@dataclass
class EndedRuns:
    """Counts ended runs, and remembers the runs already counted. Runs that ended before the process's first call are
    not counted."""

    since: datetime | None = None
    known: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def tell(self, runs: Runs, recorder: Recorder, now: datetime) -> None:
        """Report to the recorder which runs have ended since the last call, and which are unfinished."""
        recorder.runs(lambda: (self._new(runs, now), _under_way(runs)))

    def _new(self, runs: Runs, now: datetime) -> list[EndedRun]:
        after = None if self.since is None else min(self.since, now) - OVERLAP  # the clock may have been set back
        found = runs.updated(FINISHED, RUNS_AT_ONCE + len(self.known), after)  # all known runs may lie in OVERLAP
        new = [record for record in found if record.dagster_run.run_id not in self.known]
        self.known.extend(record.dagster_run.run_id for record in new)
        self.since = min(max([self.since or EPOCH, *(record.update_timestamp for record in found)]), now)
        return [] if after is None else [_ended(runs.settings, record) for record in new]


def _ended(settings: Settings, record: dg.RunRecord) -> EndedRun:
    created = record.create_timestamp.timestamp()
    took = timedelta(seconds=max((record.end_time or created) - (record.start_time or created), 0.0))
    return EndedRun(_job(settings, record), record.dagster_run.status.value.lower(), took)


def _under_way(runs: Runs) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for record in runs.updated(UNFINISHED, limit=RUNS_AT_ONCE, after=EPOCH):
        job, since = _job(runs.settings, record), record.create_timestamp.astimezone(UTC)
        found[job] = min(since, found.get(job, since))
    return found


def _job(settings: Settings, record: dg.RunRecord) -> str:
    """Return the job's name without the pipeline's prefix. All jobs that materialize assets from the UI share one name,
    so that there are few names."""
    name = record.dagster_run.job_name
    return BY_THE_UI if name.startswith(OF_THE_UI) else unprefixed(settings, name)
