"""Settings on the emulator or on the model, a lake on disk, and ticks of the real sensors on a real instance."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.test_utils import create_run_for_test
from google.pubsub_v1 import PublisherClient, PubsubMessage

from tests.clock import ManualClock
from tests.emulator.builders import a_subscription, a_topic
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription, Outside
from tests.quick import with_policy
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.partitions import stretch_named
from tidemark.assets.scheduler.runs import Runs
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import Clock, SystemClock, iso
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.ingest.rounds import PLAN, RunPlan
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, PIPELINE, op_of
from tidemark.pipeline.pubsub.leases import LEASE
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import (
    LakeSettings,
    PubSubSettings,
    SparkSettings,
    WatermarkSettings,
    WindowSettings,
)
from tidemark.pipeline.watermark.usage import Usage
from tidemark.pipeline.windows import Windowing
from tidemark.resources.lake import LakeResource

SECOND = timedelta(seconds=1)
SOMEBODY_ELSES: Sequence[Mapping[str, str]] = ({}, {PIPELINE: "gs://bucket/another-lake"})
"""Tags of runs whose jobs have the names of ours: of a project that is not tidemark's, and of a second pipeline."""

FIELDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT}


PUBSUB = PubSubSettings()
"""On the model."""


def settings_of(pubsub: PubSubSettings, folder: Path, *, spark: SparkSettings | None = None) -> Settings:
    """A band of a second, and idle after a second of silence: a watermark moves within seconds."""
    settings = Settings(
        pubsub=pubsub,
        message=MessageSettings(fields=FIELDS),
        windows=WindowSettings(length=timedelta(minutes=1)),
        watermark=WatermarkSettings(band=SECOND, tick=SECOND, idle_timeout=SECOND),
        lake=LakeSettings(uri=f"file:{folder / 'lake'}"),
        spark=spark or SparkSettings(),
    )
    return with_policy(settings, max_idle_lag=timedelta(0))


class Hasty(SystemClock):
    """The machine's clock, on which no tick waits until it is due."""

    def sleep(self, seconds: float) -> None:
        """At once."""


class ModelWorld(Outside):
    """A topic of the model with base and tracking, on a clock that moves when told to. It is its own publisher, and
    what a subscription of the model asks of a process. `at_most` bounds what a pull of a subscription brings."""

    def __init__(self, pubsub: PubSubSettings, start: datetime | None = None) -> None:
        self.at_most = dict[str, int]()
        self.clock = ManualClock(start or SystemClock().now())  # Dagster notes its runs by the machine's clock
        self.model = PubSubModel(rng=random.Random(0))
        self.model.create_topic(a_topic(pubsub.topic_path))
        for path in (pubsub.tracking_path, pubsub.base_path):
            self.model.create_subscription(a_subscription(path, pubsub.topic_path, LEASE), self.clock.now())

    def publish(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """As the client publishes."""
        self.model.publish(topic, [PubsubMessage(message)._pb for message in messages], self.clock.now())


class MeteredSubscription(ModelSubscription):
    """A subscription of the model whose pulls are counted, as the client counts them."""

    def __init__(self, world: ModelWorld, path: str, spending: Spending) -> None:
        super().__init__(world.model, path, world)
        self._world, self._spending = world, spending

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        at_most = self._world.at_most.get(self._name, max_messages)
        batch = super().pull(min(max_messages, at_most), max_bytes, seconds, ahead)
        self._spending.count(Usage(pulls=1))
        return batch


class ModelPubSub(Subscriptions):
    """Base and tracking of a world."""

    def __init__(self, settings: Settings, kept: Kept, clock: Clock, world: ModelWorld) -> None:
        super().__init__(settings, kept, clock)
        self.settings, self.world = settings, world

    def base(self) -> ModelSubscription:  # type: ignore[override]
        return self._of_model(self.settings.pubsub.base_path)

    def tracking(self) -> ModelSubscription:  # type: ignore[override]
        return self._of_model(self.settings.pubsub.tracking_path)

    def base_backlog(self, user: str = "") -> ModelBacklog:  # noqa: ARG002 (each gets the same)
        return ModelBacklog(self.world.model, self.settings.pubsub.base_path, self.world)

    def tracking_backlog(self, user: str = "") -> ModelBacklog:  # noqa: ARG002
        return ModelBacklog(self.world.model, self.settings.pubsub.tracking_path, self.world)

    def sweep(self) -> int:
        return 0

    def _of_model(self, path: str) -> ModelSubscription:
        return MeteredSubscription(self.world, path, self.spending())


def publish(
    publisher: PublisherClient | ModelWorld,
    settings: Settings,
    beats: Sequence[tuple[str, datetime]],
    *,
    broken: Sequence[Mapping[str, str]] = (),
) -> None:
    """Publish heartbeats of streams at event times, and messages with attributes that are no heartbeats."""
    messages = [
        {
            "data": json.dumps({"temperature": 20.0 + number, "status": "ok"}).encode(),
            "attributes": {"stream_id": stream, "event_time": iso(moment), "heartbeat_id": f"{stream}-{iso(moment)}"},
        }
        for number, (stream, moment) in enumerate(beats)
    ]
    messages += [{"data": b"{}", "attributes": dict(attributes)} for attributes in broken]
    publisher.publish(topic=settings.pubsub.topic_path, messages=messages)


def beats_between(start: datetime, end: datetime, *, streams: int = 2) -> list[tuple[str, datetime]]:
    """A heartbeat of each stream every 30 seconds."""
    count = int((end - start) / timedelta(seconds=30))
    return [
        (f"stream-{stream}", start + number * timedelta(seconds=30) + stream * SECOND)
        for number in range(count)
        for stream in range(streams)
    ]


@dataclass
class Ticking:
    """The real sensors, evaluated as the daemon evaluates them, with what they report stored."""

    settings: Settings
    instance: dg.DagsterInstance
    clock: Clock = field(default_factory=Hasty)
    world: ModelWorld | None = None
    plan: RunPlan = PLAN
    cursors: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new code server, which has kept nothing."""
        self.definitions = build_definitions(self.settings, self.clock, plan=self.plan)
        self.resources = {name: (self.definitions.resources or {})[name] for name in ("pubsub", "lake")}
        if self.world is not None:
            self.resources["pubsub"] = ModelPubSub(self.settings, Kept(), self.clock, self.world)

    def tick(self, sensor_name: str) -> SensorExecutionData:
        """One tick; its events are stored on the instance, as the daemon does. Runs are not launched."""
        given = {"definitions": self.definitions, "sensor_name": sensor_name, "resources": self.resources}
        with dg.build_sensor_context(self.instance, self.cursors.get(sensor_name), **given) as context:  # type: ignore[arg-type]
            data = self.definitions.resolve_sensor_def(sensor_name).evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursors[sensor_name] = data.cursor
        return data

    @property
    def lake_resource(self) -> LakeResource:
        """The lake that the sensors share."""
        return cast("LakeResource", self.resources["lake"])

    @property
    def runs(self) -> Runs:
        return Runs(self.instance, self.settings)

    def run(self, job_name: str, status: dg.DagsterRunStatus, tags: Mapping[str, str] | None = None) -> dg.DagsterRun:
        """A run of one of our jobs, noted and not launched; with other tags, somebody else's."""
        tags = tags_of(self.settings) if tags is None else tags
        return create_run_for_test(self.instance, job_name=job_name, status=status, tags=dict(tags))

    def launched(self, data: SensorExecutionData) -> dg.DagsterRun:
        """The only run that a tick asks for, begun."""
        (request,) = data.run_requests or []
        return create_run_for_test(
            self.instance,
            job_name=request.job_name,
            run_config=request.run_config,
            status=dg.DagsterRunStatus.STARTED,
            tags={**tags_of(self.settings), **request.tags},
        )

    def report_by_a_run(self, events: Sequence[dg.AssetMaterialization]) -> None:
        """Materializations that a run reports, which does nothing else."""

        @dg.op(out=dg.Out(dg.Nothing))
        def report_some() -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
            yield from events
            yield dg.Output(None)

        @dg.job
        def a_run() -> None:
            report_some()

        assert a_run.execute_in_process(instance=self.instance).success

    def land(self) -> SensorExecutionData:
        return self.tick("landing")

    def track(self) -> SensorExecutionData:
        return self.tick("tracking")

    def land_and_close(self) -> SensorExecutionData:
        """Land what is there, track it, and tick again after the silence that closes it."""
        self.land()
        self.track()
        (SystemClock() if self.world is None else self.clock).sleep(2.2)
        return self.track()

    def lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.kinds, self.clock)

    def watermark(self) -> datetime | None:
        return self.lake().tracking_log().catch_up().watermark


def windows_of(request: dg.RunRequest, windowing: Windowing) -> list[str]:
    """The windows that a run of `compute_windows` is asked for, by their keys."""
    asked = request.run_config["ops"][op_of(COMPUTE_WINDOWS)]["config"]["windows"]
    return [windowing.numbered(number).key for text in asked for number in stretch_named(text, windowing)]


def keys(data: SensorExecutionData) -> list[str]:
    """The assets that a tick reports on, in order."""
    return [event.asset_key.to_user_string() for event in data.asset_events]


def metadata_of(data: SensorExecutionData, asset: str) -> dict[str, object]:
    """The plain values of an asset's metadata in a tick."""
    (event,) = [event for event in data.asset_events if event.asset_key.to_user_string() == asset]
    return {name: value.value for name, value in event.metadata.items()}
