"""The wrapper of each sensor tick. It gives the tick an id, measures its duration, and records its failure."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import dagster as dg
from structlog.contextvars import bound_contextvars

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.ingest.pace import least_interval
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.observe.outlet import check_libraries
from tidemark.pipeline.observe.recorder import Recorder
from tidemark.pipeline.orchestrator.names import TICK, name_of
from tidemark.pipeline.quality.failing import TickNotes
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, keys_of, lake_of
from tidemark.resources.lake import LakeResource

RECORDER, NOTES, PROBLEMS = "recorder", "notes of ticks", "problems of ticks"
"""Keys in `Kept`, for objects that outlive a tick: the recorder, the notes about failed ticks, and the problems of
ticks that did not fail."""

WRITERS = ("landing", "tracking")
"""The sensors that claim the lake: their ticks write this pipeline's name to `owner.json`. The other sensors only read
it. All sensors refuse to tick if another pipeline owns the lake."""

Jobs = Sequence[dg.JobDefinition]
Tick = Callable[[dg.SensorEvaluationContext, LakeResource], dg.SensorResult | str]
"""A sensor's function. If it returns a string, nothing is requested, and the string gives the reason."""


def keep_recorder(
    settings: Settings, kept: Kept, sensors: Iterable[dg.SensorDefinition], jobs: Jobs, clock: Clock
) -> None:
    """Put into `kept` the recorder of the sensors' ticks and of the runs of `jobs`. The recorder does nothing before
    the first tick. Raises ToolMissing if the settings ask for metrics and a library is missing."""
    check_libraries(settings.metrics)
    tick, names = settings.watermark.tick, [unprefixed(settings, job.name) for job in jobs]
    every = {
        unprefixed(settings, sensor.name): max(tick, timedelta(seconds=sensor.minimum_interval_seconds or 0))
        for sensor in sensors
    }
    kept.get(RECORDER, lambda: Recorder(settings, every, names, clock))


def recorder_of(lake: LakeResource) -> Recorder:
    """Return the recorder of this pipeline's ticks."""
    return lake.kept.get(RECORDER, lambda: Recorder(lake.settings, {}, (), lake.clock))


def ticking_sensor(
    settings: Settings, name: str, *resources: str, waits: bool = False, at_least: timedelta = timedelta(0), **more: Any
) -> Callable[[Tick], dg.SensorDefinition]:
    """Return a decorator that turns a function into a sensor. The sensor is on by default, and has the lake and these
    further resources. Its interval is `watermark.tick`, or `at_least` if that is longer.

    With `waits`, the function itself waits until the tick is due. Otherwise, Dagster's daemon starts each tick about
    one interval after the last one.

    Use `context.log` only to write to it: even reading it makes Dagster create a log file that is never deleted.
    """
    sensor = dg.sensor(
        name=name_of(settings, name),
        minimum_interval_seconds=least_interval(max(settings.watermark.tick, at_least), waits=waits),
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys=keys_of(settings, LAKE, *resources),
        **more,
    )
    return lambda evaluate: sensor(watched(settings, name, evaluate))


def watched(settings: Settings, sensor: str, tick: Tick) -> Callable[[dg.SensorEvaluationContext], dg.SensorResult]:
    """Wrap a sensor's function so that each tick gets an id, and its duration and failure are recorded. The id is also
    a tag of the runs that the tick requests."""

    def watching(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        lake, clock = lake_of(context, settings), SystemClock()
        recorder, began = recorder_of(lake), clock.monotonic()
        # Dagster's id of the tick, as in its storage.
        tick_id = context.log_key[-1] if context.log_key else uuid4().hex[:12]
        notes, in_lake = lake.kept.get(NOTES, lambda: TickNotes(settings, lake.clock)), None
        recorder.begin(sensor)
        try:
            in_lake = lake.of(sensor).failed_ticks()
            with bound_contextvars(pipeline=settings.pipeline_name, sensor=sensor, tick=tick_id):
                owned = lake.ownership()
                (owned.state if sensor in WRITERS else owned.allow)()
                result = tick(context, lake)
        except Exception as error:
            recorder.ticked(sensor, clock.monotonic() - began, notes.failed(sensor, error, in_lake))
            raise
        recorder.ticked(sensor, clock.monotonic() - began)
        notes.good(sensor, in_lake, waits=lake.kept.get(PROBLEMS, dict[str, str]).pop(sensor, ""))
        if isinstance(result, str):
            return dg.SensorResult(skip_reason=dg.SkipReason(result))
        asked = [one.with_replaced_attrs(tags={**one.tags, TICK: tick_id}) for one in result.run_requests or ()]
        return result._replace(run_requests=asked) if asked else result

    return watching


def unprefixed(settings: Settings, name: str) -> str:
    """Return the name of a job or sensor in Dagster without the pipeline's prefix."""
    return name.removeprefix(name_of(settings, ""))
