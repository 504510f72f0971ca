"""The real parts that are measured: a Pub/Sub on loopback, Spark Connect, and lakes on this disk."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from benchmarks.traffic import LIVE_RATE, REGULAR
from tidemark.local.demo.script import free_port
from tidemark.local.demo.synthetic import publish
from tidemark.local.services.emulator_choice import choose_emulator
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import spark_server, start_emulator, token_environment
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import Tracked, land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import EmulatorKind
from tidemark.pipeline.spark.session import session_config
from tidemark.pipeline.spark.warm_up import warm_up

HISTORY_AGE = timedelta(hours=1)
"""How far before now a published history ends: further than `max_idle_lag`, so that the watermark passes all of it."""


@dataclass(frozen=True)
class World:
    """One topic with its two subscriptions, and one lake: its own for each round, so that each begins with nothing."""

    settings: Settings
    subscriber: SubscriberClient
    publisher: PublisherClient
    clock: SystemClock

    @cached_property
    def lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.kinds, self.clock)

    @cached_property
    def tracking_log(self) -> TrackingLog:
        """The tracker's own view of the log."""
        return self.lake.tracking_log()

    @cached_property
    def landing_log(self) -> TrackingLog:
        """The lander's own view of the log."""
        return self.lake.tracking_log()

    @cached_property
    def heartbeats(self) -> Heartbeats:
        return self.lake.heartbeats()

    @cached_property
    def quarantine(self) -> Quarantine:
        return self.lake.quarantine()

    @cached_property
    def reader(self) -> HeartbeatReader:
        return HeartbeatReader(self.settings.contract)

    def publish(self, messages: int) -> int:
        """Publish so many messages' worth of traffic at the live rate, in one go; how many there were."""
        end = self.clock.now() - HISTORY_AGE
        start = end - timedelta(seconds=messages / LIVE_RATE)
        truth = self.settings.lake.folder
        if truth is None:
            raise ValueError("a benchmark's lake is a folder")
        topic = self.settings.pubsub.topic_path
        done = publish(
            REGULAR, self.publisher, topic, self.clock, start, end, truth_path=truth.with_suffix(".truth.parquet")
        )
        return done.messages

    def subscription(self, path: str) -> PubSubSubscription:
        """As the sensors have it."""
        return PubSubSubscription(self.subscriber, path, self.clock, self.settings.pubsub)

    def backlog(self, path: str) -> SnapshotBacklog:
        """The reading of a subscription."""
        return SnapshotBacklog(self.subscriber, path, ReadingTimes(self.clock))

    def track(self, budget: Budget, subscription: PubSubSubscription | None = None) -> Tracked:
        """One tracking tick."""
        pubsub = self.settings.pubsub
        tracking = subscription or self.subscription(pubsub.tracking_path)
        return track(
            Settling(self.tracking_log, self.clock, {Side.TRACKING: tracking}),
            {Side.TRACKING: self.backlog(pubsub.tracking_path), Side.BASE: self.backlog(pubsub.base_path)},
            self.reader,
            self.settings.policy,
            budget,
            until_gone=self.backlog(pubsub.tracking_path),
        )

    def land(self, budget: Budget, subscription: PubSubSubscription | None = None) -> Ingested:
        """One landing tick."""
        path = self.settings.pubsub.base_path
        base, tables = subscription or self.subscription(path), new_files(self.lake, self.clock)
        settling = Settling(self.landing_log, self.clock, {Side.BASE: base}, tables)
        return land(settling, self.reader, budget, self.backlog(path))


class Machine:
    """What runs for the whole benchmark, and what is made on it."""

    def __init__(self, settings: Settings, folder: Path, supervisor: Supervisor) -> None:
        self.settings = settings
        self.folder = folder
        self.clock = SystemClock()
        self.supervisor = supervisor
        self.pubsub_name = choose_emulator(settings.pubsub.emulator).name
        self._subscriber = subscriber_client(settings.pubsub.emulator_host)
        self._publisher = publisher_client(settings.pubsub.emulator_host)

    def world(self, **watermark: timedelta) -> World:
        """A new topic, subscriptions and lake, with the settings of `tidemark.toml` but for these of `[watermark]`."""
        unique = uuid.uuid4().hex[:12]
        names = {"topic": "topic", "base_subscription": "base", "tracking_subscription": "tracking"}
        pubsub = self.settings.pubsub.model_copy(update={key: f"bench-{name}-{unique}" for key, name in names.items()})
        settings = self.settings.model_copy(
            update={
                "pubsub": pubsub,
                "lake": self.settings.lake.model_copy(update={"uri": f"file:{self.folder / 'lakes' / unique}"}),
                "watermark": self.settings.watermark.model_copy(update=watermark),
            }
        )
        provision(self._subscriber, self._publisher, pubsub, settings.contract, self.clock)
        return World(settings, self._subscriber, self._publisher, self.clock)

    def forget(self, world: World) -> None:
        """Take a world's topic and subscriptions off the server, which holds everything in memory."""
        pubsub = world.settings.pubsub
        for path in (pubsub.base_path, pubsub.tracking_path):
            self._subscriber.delete_subscription(subscription=path)
        self._publisher.delete_topic(topic=pubsub.topic_path)

    def stop(self) -> None:
        """Give the session back while there is a server: at the program's end it would look for it for minutes."""
        if "spark" in self.__dict__:
            self.spark.stop()

    @cached_property
    def spark(self) -> SparkSession:
        """A session on the Spark Connect server, which is started when it is first asked for, and warmed up."""
        token = token_environment()
        os.environ.update(token)
        self.supervisor.start(spark_server(self.settings, self.supervisor.state_folder, token))
        session = SparkSession.builder.config(map={**session_config(self.settings)}).getOrCreate()
        warm_up(session)
        return session


@contextmanager
def machine(folder: Path, emulator: EmulatorKind, say: Callable[[str], None]) -> Iterator[Machine]:
    """Everything that is needed, on free ports of loopback; it is stopped at the end, whatever happens."""
    settings = load_settings()
    settings = settings.model_copy(
        update={
            "pubsub": settings.pubsub.model_copy(
                update={"emulator": emulator, "emulator_host": f"127.0.0.1:{free_port(0)}", "project": "tidemark-bench"}
            ),
            "spark": settings.spark.model_copy(update={"remote": f"sc://localhost:{free_port(0)}"}),
        }
    )
    supervisor = Supervisor(folder, SystemClock(), say)
    try:
        start_emulator(supervisor, settings)
        parts = Machine(settings, folder, supervisor)
        try:
            yield parts
        finally:
            parts.stop()
    finally:
        supervisor.stop()
