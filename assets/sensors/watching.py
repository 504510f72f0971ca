"""The frame of each tick of a sensor: its id, its measurements, and the notes of its failure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
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
from tidemark.pipeline.quality.running import TickNotes
from tidemark.pipeline.settings import Settings
from tidemark.resources.json_logs import ids_in_logs
from tidemark.resources.keys import lake_of
from tidemark.resources.lake import LakeResource

OBSERVER, ENDED, NOTES, PROBLEMS = "observer", "ended runs", "notes of ticks", "problems of ticks"
"""Keys of what the process keeps."""

RUNS_AT_ONCE = 200
"""The most runs that one look counts; the next one goes on."""

OVERLAP, REMEMBERED = timedelta(seconds=5), 2000
"""A look begins so long before the newest known run, since the times come from several processes. So many runs are
remembered, so that each counts once."""

WRITERS = ("landing", "tracking")
"""The sensors whose ticks state that the pipeline writes the lake; each other one only refuses another's lake."""

OF_THE_UI, BY_THE_UI = "__ASSET_JOB", "materialize"
"""Dagster's name for the job of assets that the UI materializes, and ours."""

Jobs = Sequence[dg.JobDefinition]
Tick = Callable[[dg.SensorEvaluationContext], dg.SensorResult]


def keep_observer(
    settings: Settings, kept: Kept, sensors: Iterable[dg.SensorDefinition], jobs: Jobs, clock: Clock
) -> None:
    """Have the sensors with this `kept` observed as the settings ask for, and the runs of `jobs`. Raises ToolMissing if
    a library is missing; nothing is imported, opened or started before the first tick."""
    check_libraries(settings.metrics)
    every, names = intervals(settings, sensors), [_plain(settings, job.name) for job in jobs]
    hosts = settings.dagster.allowed_hosts
    if settings.metrics.is_on:
        kept.get(OBSERVER, lambda: Recorder(settings, every, names, clock, lambda: outlet_of(settings.metrics, hosts)))


def intervals(settings: Settings, sensors: Iterable[dg.SensorDefinition]) -> dict[str, timedelta]:
    """The pause between two ticks of each sensor, by its name without the pipeline's."""
    tick = settings.watermark.tick
    return {
        _plain(settings, sensor.name): max(tick, timedelta(seconds=sensor.minimum_interval_seconds or 0))
        for sensor in sensors
    }


def observer_of(lake: LakeResource) -> Observer:
    """The observer of this pipeline's ticks."""
    return lake.kept.get(OBSERVER, lambda: OFF)


def notes_of(lake: LakeResource) -> TickNotes:
    """The notes that the ticks of this process leave for people."""
    return lake.kept.get(NOTES, lambda: TickNotes(lake.settings, lake.clock))


def ticking_sensor(
    settings: Settings, name: str, *, waits: bool = False, at_least: timedelta = timedelta(0), **more: Any
) -> Callable[..., dg.SensorDefinition]:
    """The decorator of a sensor that is on from the start and ticks as the settings say. Its function `waits` for the
    moment that is due, or is evaluated whenever Dagster's daemon looks about a tick after the last, and not before
    `at_least` has passed."""
    tick = max(settings.watermark.tick, at_least)
    least = least_interval(tick) if waits else last_look(tick)
    running = dg.DefaultSensorStatus.RUNNING
    sensor = dg.sensor(name=name_of(settings, name), minimum_interval_seconds=least, default_status=running, **more)
    return lambda evaluate: sensor(watched(settings, name, evaluate))


def watched(settings: Settings, sensor: str, tick: Tick) -> Tick:
    """A sensor's function whose ticks have an id, which the runs that they request carry as a tag, and whose failures
    and durations are noted."""

    @wraps(tick)
    def watching(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lake, clock = lake_of(context, settings), SystemClock()
        observer, began, tick_id = observer_of(lake), clock.monotonic(), _id_of(context)
        notes, in_lake = notes_of(lake), lake.whole().failed_ticks()
        observer.begin(sensor)
        try:
            with ids_in_logs(pipeline=settings.pipeline_name, sensor=sensor, tick=tick_id):
                owned = lake.ownership()
                (owned.state if sensor in WRITERS else owned.allow)()
                result = tick(context)
        except Exception as error:
            took = clock.monotonic() - began
            observer.ticked(sensor, took, notes.failed(sensor, error, in_lake))
            raise
        observer.ticked(sensor, clock.monotonic() - began)
        notes.good(sensor, in_lake, waits=lake.kept.get(PROBLEMS, dict[str, str]).pop(sensor, ""))
        if observer.is_on and sensor == INGEST:
            lake.kept.get(ENDED, EndedRuns).tell(Runs(context.instance, settings), observer)
        return _tagged(result, tick_id)

    return watching


def note_problem(lake: LakeResource, sensor: str, problem: str) -> None:
    """Have what a tick could not do noted, although it did not fail; nothing if there is no problem."""
    lake.kept.get(PROBLEMS, dict[str, str])[sensor] = problem


def _id_of(context: dg.SensorEvaluationContext) -> str:
    """Dagster's own id of the tick, as its storage has it; where there is none, one of our own."""
    return context.log_key[-1] if context.log_key else uuid4().hex[:12]


def _tagged(result: dg.SensorResult, tick_id: str) -> dg.SensorResult:
    """The result, whose runs say which tick requested them."""
    if not result.run_requests:
        return result
    requests = [one.with_replaced_attrs(tags={**one.tags, TICK: tick_id}) for one in result.run_requests]
    return result._replace(run_requests=requests)


@dataclass
class EndedRuns:
    """The position up to which ended runs were counted. Runs that ended before the process' first look are not."""

    since: datetime | None = None
    known: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def tell(self, runs: Runs, observer: Observer) -> None:
        """Tell the observer which runs have ended since the last look, and which are unfinished."""
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
    """The creation of the oldest unfinished run of each job."""
    found: dict[str, datetime] = {}
    for record in runs.updated(UNFINISHED, limit=RUNS_AT_ONCE, after=EPOCH):
        job, since = _job(runs.settings, record), record.create_timestamp.astimezone(UTC)
        found[job] = min(since, found.get(job, since))
    return found


def _job(settings: Settings, record: dg.RunRecord) -> str:
    """The job's name without the pipeline's. There are as many as the pipeline has jobs."""
    name = record.dagster_run.job_name
    if name.startswith(OF_THE_UI):
        return BY_THE_UI
    return _plain(settings, name)


def _plain(settings: Settings, name: str) -> str:
    """A name in Dagster without the pipeline's."""
    return name.removeprefix(name_of(settings, ""))
