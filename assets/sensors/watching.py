"""The wrapper of each sensor tick: its id, its measurements, and the notes of its failure."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import dagster as dg

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.ingest.pace import last_look, least_interval
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.observe.outlet import check_libraries, outlet_of
from tidemark.pipeline.observe.recorder import OFF, Observer, Recorder
from tidemark.pipeline.orchestrator.names import TICK, name_of
from tidemark.pipeline.quality.failing import TickNotes
from tidemark.pipeline.settings import Settings
from tidemark.resources.json_logs import ids_in_logs
from tidemark.resources.keys import LAKE, keys_of, lake_of
from tidemark.resources.lake import LakeResource

OBSERVER, NOTES, PROBLEMS = "observer", "notes of ticks", "problems of ticks"
"""Keys of objects that the process keeps."""

WRITERS = ("landing", "tracking")
"""The sensors whose ticks state that this pipeline writes the lake. The others only refuse another pipeline's lake."""

Jobs = Sequence[dg.JobDefinition]
Tick = Callable[[dg.SensorEvaluationContext, LakeResource], dg.SensorResult | str]
"""A sensor's function. Text that it returns says why nothing is requested."""


def keep_observer(
    settings: Settings, kept: Kept, sensors: Iterable[dg.SensorDefinition], jobs: Jobs, clock: Clock
) -> None:
    """Observe the sensors with this `kept`, and the runs of `jobs`, as the settings ask. Raises ToolMissing if a
    library is missing. Nothing is imported, opened or started before the first tick."""
    check_libraries(settings.metrics)
    tick, names = settings.watermark.tick, [plain(settings, job.name) for job in jobs]
    every = {
        plain(settings, sensor.name): max(tick, timedelta(seconds=sensor.minimum_interval_seconds or 0))
        for sensor in sensors
    }
    hosts = settings.dagster.allowed_hosts
    if settings.metrics.is_on:
        kept.get(OBSERVER, lambda: Recorder(settings, every, names, clock, lambda: outlet_of(settings.metrics, hosts)))


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
        if isinstance(result, str):
            return dg.SensorResult(skip_reason=dg.SkipReason(result))
        asked = [one.with_replaced_attrs(tags={**one.tags, TICK: tick_id}) for one in result.run_requests or ()]
        return result._replace(run_requests=asked) if asked else result

    return watching


def note_problem(lake: LakeResource, sensor: str, problem: str) -> None:
    """Note what a tick could not do although it did not fail; empty if there is no problem."""
    lake.kept.get(PROBLEMS, dict[str, str])[sensor] = problem


def plain(settings: Settings, name: str) -> str:
    """Strip the pipeline's prefix from a name in Dagster."""
    return name.removeprefix(name_of(settings, ""))
