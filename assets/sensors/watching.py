"""The wrapper of each sensor tick: its id, its measurements, and the notes of its failure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import dagster as dg

from tidemark.assets.scheduler.runs import FINISHED, UNFINISHED, Runs
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock
from tidemark.pipeline.ingest.pace import last_look, least_interval
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.observe.outlet import check_libraries, outlet_of
from tidemark.pipeline.observe.recorder import OFF, EndedRun, Observer, Recorder
from tidemark.pipeline.orchestrator.names import INGEST, TICK, name_of
from tidemark.pipeline.quality.failing import TickNotes
from tidemark.pipeline.settings import Settings
from tidemark.resources.json_logs import ids_in_logs
from tidemark.resources.keys import LAKE, keys_of, lake_of
from tidemark.resources.lake import LakeResource

OBSERVER, ENDED, NOTES, PROBLEMS = "observer", "ended runs", "notes of ticks", "problems of ticks"
"""Keys of objects that the process keeps."""

RUNS_AT_ONCE = 200
"""Runs that one call counts at most; the next call continues."""

OVERLAP, REMEMBERED = timedelta(seconds=5), 2000
"""Each call begins this long before the newest known run, since the times come from several processes. This many runs
are remembered, so that each counts once."""

WRITERS = ("landing", "tracking")
"""The sensors whose ticks state that this pipeline writes the lake. The others only refuse another pipeline's lake."""

OF_THE_UI, BY_THE_UI = "__ASSET_JOB", "materialize"
"""The beginning of Dagster's name for a job that materializes assets from the UI, and tidemark's name for it."""

Jobs = Sequence[dg.JobDefinition]
Tick = Callable[[dg.SensorEvaluationContext, LakeResource], dg.SensorResult | str]
"""A sensor's function. Text that it returns says why nothing is requested."""


def keep_observer(
    settings: Settings, kept: Kept, sensors: Iterable[dg.SensorDefinition], jobs: Jobs, clock: Clock
) -> None:
    """Observe the sensors with this `kept`, and the runs of `jobs`, as the settings ask. Raises ToolMissing if a
    library is missing. Nothing is imported, opened or started before the first tick."""
    check_libraries(settings.metrics)
    every, names = intervals(settings, sensors), [_plain(settings, job.name) for job in jobs]
    hosts = settings.dagster.allowed_hosts
    if settings.metrics.is_on:
        kept.get(OBSERVER, lambda: Recorder(settings, every, names, clock, lambda: outlet_of(settings.metrics, hosts)))


def intervals(settings: Settings, sensors: Iterable[dg.SensorDefinition]) -> dict[str, timedelta]:
    """Return the interval of each sensor's ticks, keyed by its name without the pipeline's prefix."""
    tick = settings.watermark.tick
    return {
        _plain(settings, sensor.name): max(tick, timedelta(seconds=sensor.minimum_interval_seconds or 0))
        for sensor in sensors
    }


def observer_of(lake: LakeResource) -> Observer:
    """Return the observer of this pipeline's ticks."""
    return lake.kept.get(OBSERVER, lambda: OFF)


def notes_of(lake: LakeResource) -> TickNotes:
    """Return the notes that this process' ticks leave for users."""
    return lake.kept.get(NOTES, lambda: TickNotes(lake.settings, lake.clock))


def ticking_sensor(
    settings: Settings,
    name: str,
    *resources: str,
    waits: bool = False,
    at_least: timedelta = timedelta(0),
    **more: Any,
) -> Callable[[Tick], dg.SensorDefinition]:
    """Return a decorator for a sensor that is on by default and ticks as the settings say, with the lake and these
    further resources. With `waits`, its function
    waits for the due time itself; otherwise Dagster's daemon evaluates it about a tick after the last, and not before
    `at_least` has passed."""
    tick = max(settings.watermark.tick, at_least)
    sensor = dg.sensor(
        name=name_of(settings, name),
        minimum_interval_seconds=least_interval(tick) if waits else last_look(tick),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys=keys_of(settings, LAKE, *resources),
        **more,
    )
    return lambda evaluate: sensor(watched(settings, name, evaluate))


def watched(settings: Settings, sensor: str, tick: Tick) -> Callable[[dg.SensorEvaluationContext], dg.SensorResult]:
    """Wrap a sensor's function: each tick gets an id, which the runs that it requests carry as a tag, and its failure
    and duration are recorded."""

    def watching(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lake, clock = lake_of(context, settings), SystemClock()
        observer, began = observer_of(lake), clock.monotonic()
        # Dagster's id of the tick, as in its storage.
        tick_id = context.log_key[-1] if context.log_key else uuid4().hex[:12]
        notes, in_lake = notes_of(lake), lake.whole().failed_ticks()
        observer.begin(sensor)
        try:
            with ids_in_logs(pipeline=settings.pipeline_name, sensor=sensor, tick=tick_id):
                owned = lake.ownership()
                (owned.state if sensor in WRITERS else owned.allow)()
                result = tick(context, lake)
        except Exception as error:
            took = clock.monotonic() - began
            observer.ticked(sensor, took, notes.failed(sensor, error, in_lake))
            raise
        observer.ticked(sensor, clock.monotonic() - began)
        notes.good(sensor, in_lake, waits=lake.kept.get(PROBLEMS, dict[str, str]).pop(sensor, ""))
        if observer.is_on and sensor == INGEST:
            lake.kept.get(ENDED, EndedRuns).tell(Runs(context.instance, settings), observer)
        if isinstance(result, str):
            return dg.SensorResult(skip_reason=dg.SkipReason(result))
        asked = [one.with_replaced_attrs(tags={**one.tags, TICK: tick_id}) for one in result.run_requests or ()]
        return result._replace(run_requests=asked) if asked else result

    return watching


def note_problem(lake: LakeResource, sensor: str, problem: str) -> None:
    """Note what a tick could not do although it did not fail; empty if there is no problem."""
    lake.kept.get(PROBLEMS, dict[str, str])[sensor] = problem


@dataclass
class EndedRuns:
    """Progress of the count of ended runs. Runs that ended before the process' first call are not counted."""

    since: datetime | None = None
    known: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def tell(self, runs: Runs, observer: Observer) -> None:
        """Report to the observer which runs have ended since the last call, and which are unfinished."""
        observer.runs(lambda: (self._new(runs), _under_way(runs)))

    def _new(self, runs: Runs) -> list[EndedRun]:
        after = None if self.since is None else self.since - OVERLAP
        found = runs.updated(FINISHED, RUNS_AT_ONCE, after)
        new = [record for record in found if record.dagster_run.run_id not in self.known]
        self.known.extend(record.dagster_run.run_id for record in new)
        self.since = max([self.since or EPOCH, *(record.update_timestamp for record in found)])
        return [] if after is None else [_ended(runs.settings, record) for record in new]


def _ended(settings: Settings, record: dg.RunRecord) -> EndedRun:
    created = record.create_timestamp.timestamp()
    began = record.start_time or created
    took = timedelta(seconds=max((record.end_time or created) - began, 0.0))
    return EndedRun(_job(settings, record), record.dagster_run.status.value.lower(), took)


def _under_way(runs: Runs) -> dict[str, datetime]:
    """Return the creation time of the oldest unfinished run of each job."""
    found: dict[str, datetime] = {}
    for record in runs.updated(UNFINISHED, limit=RUNS_AT_ONCE, after=EPOCH):
        job, since = _job(runs.settings, record), record.create_timestamp.astimezone(UTC)
        found[job] = min(since, found.get(job, since))
    return found


def _job(settings: Settings, record: dg.RunRecord) -> str:
    """Return the job's name without the pipeline's prefix. There are as many names as the pipeline has jobs."""
    name = record.dagster_run.job_name
    if name.startswith(OF_THE_UI):
        return BY_THE_UI
    return _plain(settings, name)


def _plain(settings: Settings, name: str) -> str:
    """Strip the pipeline's prefix from a name in Dagster."""
    return name.removeprefix(name_of(settings, ""))
