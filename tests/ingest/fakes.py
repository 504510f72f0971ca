"""One process beside the Pub/Sub model, on one thread: a test that breaks the contract of acknowledgement fails.

A message that was not acknowledged in time is delivered again, in any order. A message must be durable before it is
acknowledged.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from google.pubsub_v1 import PubsubMessage

from tests.clock import ManualClock
from tests.emulator.builders import a_subscription, a_topic
from tests.ingest.judged import read_payload
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription, Outside
from tests.watermark.builders import START, at
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, Heartbeat, HeartbeatReader, MessageContract, Rejection
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.requeue import Requeue, Requeuer
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import Tracked, land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.notes import WatermarkObject
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.quarantine import EVERY, Rejected, Rejudged, Requeued
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, NO_EVENT, Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Entry, Snapshot
from tidemark.pipeline.windows import Windowing

FIELDS = {"load": FieldKind.NUMBER}
WINDOWING = Windowing(timedelta(minutes=1), START)
CONTRACT = MessageContract(
    event_time=Place.of("attribute:event_time"),
    stream_id=(Place.of("attribute:stream_id"),),
    publisher_id=Place.of("attribute:heartbeat_id"),
    first_event_time=START - timedelta(days=1),
    max_future_skew=timedelta(minutes=5),
    fields=FIELDS,
)
AMPLE = Budget(max_messages=1000, max_bytes=1 << 20, max_time=timedelta(seconds=20), batch_messages=100)
TOPIC = "topic"
ACK_DEADLINE = timedelta(seconds=60)
KEPT = timedelta(days=31)
"""How long the subscriptions keep an unacknowledged message."""

ANSWER = timedelta(milliseconds=100)
"""How long a pull or a reading takes."""


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Steps:
    """What one process did outside of itself, in order; `dies_at` is the number of the step at which it ends."""

    taken: list[str] = field(default_factory=list)
    dies_at: int | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended: it does nothing more, whatever its code says."""
        return self.dies_at is not None and len(self.taken) >= self.dies_at

    def take(self, step: str) -> None:
        if not self.is_dead:
            self.taken.append(step)
        if self.is_dead:
            raise Crash

    def of_kind(self, *kinds: str) -> list[str]:
        """The steps that begin with one of these words."""
        return [step for step in self.taken if step.startswith(kinds)]


class Topic:
    """A topic of the model, to which messages are published with the moment's publish time."""

    def __init__(self, model: PubSubModel, clock: ManualClock) -> None:
        self.messages: list[Any] = []
        self._model = model
        self._clock = clock
        model.create_topic(a_topic(TOPIC))

    def publish(
        self,
        event_time: float | str | None,
        *,
        stream: str | None = "a",
        payload: Mapping[str, Any] | bytes | None = None,
        publisher_id: str | None = None,
    ) -> Any:
        """One message: its event time in seconds from the start, or the text of the attribute, or none."""
        attributes = {"event_time": to_written(event_time), "stream_id": stream, "heartbeat_id": publisher_id}
        return self.publish_plain(
            payload if isinstance(payload, bytes) else json.dumps(payload or {}).encode(), attributes
        )

    def publish_plain(self, data: bytes, attributes: Mapping[str, str | None]) -> Any:
        """One message as it is, without the attributes that are None."""
        message = PubsubMessage(
            data=data, attributes={name: value for name, value in attributes.items() if value is not None}
        )._pb
        self._model.publish(TOPIC, [message], self._clock.now())
        self.messages.append(message)
        return message


def to_written(event_time: float | str | None) -> str | None:
    """How a source writes an event time: milliseconds since the epoch."""
    if event_time is None or isinstance(event_time, str):
        return event_time
    return str(to_us(at(event_time)) // 1000)


class WorldSubscription(ModelSubscription):
    """A subscription of a world, some of whose acknowledgements fail when a test says so."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.model, name, world)
        self.acknowledgements_that_fail = 0
        self._world = world

    @property
    def unacknowledged(self) -> list[Any]:
        """The messages that will be delivered again, or for the first time."""
        return list(self._model.unacknowledged(self._name))

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        if not self._world.steps.is_dead:
            super().give_back(ack_ids, seconds)

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        refused, rest = ack_ids[: self.acknowledgements_that_fail], ack_ids[self.acknowledgements_that_fail :]
        self.acknowledgements_that_fail -= len(refused)
        problems = tuple(f"{ack_id} was refused" for ack_id in refused)
        self._let_go(refused)
        return super().acknowledge(rest) + Acknowledged(failed=len(refused), problems=problems)

    def taken_by_somebody_else(self, message: Any) -> None:
        """Another reader of this subscription takes a message away, once and for all."""
        faults, self._model.faults = self._model.faults, Faults()
        now = self._world.clock.now()
        delivered = self._model.pull(self._name, 1000, now)
        taken = [each.ack_id for each in delivered if each.message is message]
        assert taken, "somebody holds the message at this moment"
        self._model.acknowledge(self._name, taken, now)
        self._model.modify_ack_deadline(
            self._name, [each.ack_id for each in delivered if each.message is not message], 0, now
        )
        self._model.faults = faults


def published_at(message: Any) -> datetime:
    """A plain message's publish time."""
    return from_us(message.publish_time.seconds * 1_000_000 + message.publish_time.nanos // 1000)


class StepwiseObjects:
    """Objects of the lake, whose creation is a step."""

    def __init__(self, objects: ObjectStore, steps: Steps) -> None:
        self._objects = objects
        self._steps = steps

    @property
    def uri(self) -> str:
        return self._objects.uri

    def create(self, name: str, content: bytes) -> None:
        self._steps.take(f"create {name}")
        self._objects.create(name, content)
        self._steps.take(f"created {name}")

    def read(self, name: str) -> bytes:
        return self._objects.read(name)

    def names(self, prefix: str) -> Iterator[str]:
        return self._objects.names(prefix)

    def delete(self, name: str) -> None:
        self._objects.delete(name)


class StepwiseFiles(NewFiles):
    """A table of the lake, whose transactions are steps; `before` and `after` raise what a test lets go wrong."""

    def __init__(self, name: str, files: NewFiles, steps: Steps) -> None:
        super().__init__(files._table, files._clock)
        self._name = name
        self._steps = steps
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []

    def add(self, files: Sequence[NewFile], says: Mapping[str, str]) -> None:
        if not files:
            return
        self._steps.take(f"append {self._name}")
        _fail(self.before)
        super().add(files, says)
        self._steps.take(f"appended {self._name}")
        _fail(self.after)


def _fail(faults: list[Exception | None]) -> None:
    fault = faults.pop(0) if faults else None
    if fault is not None:
        raise fault


class World(Outside):
    """A topic with its two subscriptions, a lake in a folder or elsewhere, and the processes that tick, one after
    another.

    A process that restarts knows nothing but what Pub/Sub and the lake hold. `fails` names steps, and what they raise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        redelivered: float = 0.0,
        policy: Policy | None = None,
        lake: LakeSettings | None = None,
    ) -> None:
        self.folder = folder / "lake"
        self.lake_settings = LakeSettings(uri=f"file:{self.folder}") if lake is None else lake
        self.clock = ManualClock(at(0))
        self.model = PubSubModel(
            rng=random.Random(seed),
            faults=Faults(shuffled=True, redelivered=redelivered, late_acknowledgement_lost=1.0),
        )
        self.topic = Topic(self.model, self.clock)
        self.fails: dict[str, Exception] = {}
        for name in ("tracking", "base"):
            self.model.create_subscription(a_subscription(name, TOPIC, ACK_DEADLINE, KEPT), self.clock.now())
        self.policy = Policy() if policy is None else policy
        self.reader = HeartbeatReader(CONTRACT)
        self._entries: dict[int, Entry] = {}
        self._extended: list[Callable[[], None]] = []
        self.restart()

    def restart(self) -> None:
        """A new process: it knows what the lake holds, and the old one's leases end."""
        self.steps = Steps()
        self._extended.clear()
        self.tracking, self.base = WorldSubscription(self, "tracking"), WorldSubscription(self, "base")
        self.tracking_backlog: Backlog = ModelBacklog(self.model, "tracking", self)
        self.base_backlog: Backlog = ModelBacklog(self.model, "base", self)
        lake = self.lake()
        self.objects = StepwiseObjects(self.stored(), self.steps)
        self.log = self.landing_log = TrackingLog(self.objects, checkpoint_every=4)
        self.copies = RememberedCopies()
        self.signals = [WatermarkObject(lake.objects(), WINDOWING)]
        heartbeats, quarantine = new_files(lake, self.clock)
        self.heartbeats = StepwiseFiles("heartbeats", heartbeats, self.steps)
        self.quarantine = StepwiseFiles("quarantine", quarantine, self.steps)

    def lake(self) -> Lake:
        """What somebody else sees of the lake."""
        return Lake(self.lake_settings, FIELDS, self.clock)

    def stored(self) -> ObjectStore:
        """What somebody else sees of its objects."""
        return open_objects(self.lake_settings)

    def track(self, budget: Budget = AMPLE, spending: Spending | None = None) -> Tracked:
        return track(
            Settling(self.log, self.clock, {Side.TRACKING: self.tracking}, copies=self.copies),
            {Side.TRACKING: self.tracking_backlog, Side.BASE: self.base_backlog},
            self.reader,
            self.policy,
            budget,
            spending=spending,
            signals=self.signals,
        )

    def land(self, budget: Budget = AMPLE) -> Ingested:
        tables = self.heartbeats, self.quarantine
        return land(Settling(self.landing_log, self.clock, {Side.BASE: self.base}, tables), self.reader, budget)

    def requeue(self, meant: Rejected = EVERY) -> Requeue:
        requeuer = Requeuer(self.lake(), self.reader, self.clock)
        requeuer.landing, requeuer.log = self.heartbeats, self.log
        requeuer.requeued, requeuer.rejudged = Requeued(self.objects), Rejudged(self.objects)
        return requeuer.run(meant)

    def tick(self) -> None:
        """Both subscriptions, once."""
        self.track()
        self.land()

    def wait(self, seconds: float) -> None:
        """Let time pass, while the process extends its leases."""
        ends = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < ends:
            self.clock.advance(min(ACK_DEADLINE / 3, ends - self.clock.now()))
            for extend in self._extended:
                extend()

    # What the subscriptions ask of the process

    def step(self, what: str) -> None:
        """A step of the process; it raises what `fails` has for it. Pub/Sub takes its time to answer."""
        self.steps.take(what)
        if what in self.fails:
            raise self.fails[what]
        if what.startswith(("pull ", "has read ")):
            self.clock.advance(ANSWER)

    def keep(self, extend: Callable[[], None]) -> Callable[[], None]:
        self._extended.append(extend)

        def stop() -> None:
            if extend in self._extended:  # else the process has ended
                self._extended.remove(extend)

        return stop

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:
        """Fail the test that acknowledges a message which could still be lost."""
        early = (self.not_landed if subscription == "base" else self.not_tracked)(messages)
        assert not early, f"acknowledged on {subscription}, and not durable: {early}"

    def not_tracked(self, messages: Sequence[Any]) -> list[str]:
        """Ids of the messages for which the lake's log has no cell with a minimum at or below their event time."""
        log = TrackingLog(self.stored(), checkpoint_every=4)
        for number in log.numbers():
            if number not in self._entries:
                self._entries[number] = log.entry(number)
        known = Histogram.empty()
        for entry in self._entries.values():
            known += entry.histogram if isinstance(entry, Snapshot) else Histogram.empty()
        return [message.message_id for message in messages if not self._is_in(known, message)]

    def _is_in(self, histogram: Histogram, message: Any) -> bool:
        published_us = to_us(published_at(message))
        heartbeat = self.reader.read(message.attributes, None, published_us)
        event_us = heartbeat.event_time_us if isinstance(heartbeat, Heartbeat) else None
        of_bucket = histogram.publish_bucket == published_us // BUCKET_US
        is_broken = isinstance(read_payload(message.data), Rejection)  # a laggard is judged by its payload as well
        if event_us is None or (is_broken and (of_bucket & (histogram.event_bucket == NO_EVENT)).any()):
            return bool(of_bucket.any())
        if "heartbeat_id" in message.attributes and (of_bucket & (histogram.event_bucket == COPY)).any():
            return True
        counted_us = min(event_us, published_us)
        same = of_bucket & (histogram.event_bucket == counted_us // BUCKET_US)
        return bool((same & (histogram.min_event_us <= counted_us)).any())

    def not_landed(self, messages: Sequence[Any]) -> list[str]:
        """Ids of the messages that are in neither table of the lake."""
        there = {*self.landed_ids(), *self.quarantined_ids()}
        return [message.message_id for message in messages if message.message_id not in there]

    def landed_ids(self) -> list[str]:
        """Message ids in `heartbeats`, with those that landed more than once."""
        return [row["message_id"] for row in self.rows("heartbeats")]

    def quarantined_ids(self) -> list[str]:
        """Message ids in `quarantine`, with those that were rejected more than once."""
        return [row["message_id"] for row in self.rows("quarantine")]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table's rows, in the order of their message ids."""
        lake = self.lake()
        opened = lake.heartbeats() if name == "heartbeats" else lake.quarantine()
        table = opened.in_place()
        return [] if table is None else table.to_pyarrow_table().sort_by("message_id").to_pylist()


Parked = TypeVar("Parked", bound=World)


def requeued_after_each_death(folder: Path, parked: Callable[[Path], Parked]) -> list[Parked]:
    """A world for each step of a requeue: the requeue died there, and was made again twice after a restart."""
    worlds = list[Parked]()
    while True:
        place = folder / str(len(worlds))
        place.mkdir()
        world = parked(place)
        world.restart()
        world.steps.dies_at = len(worlds) + 1
        try:
            world.requeue()
        except Crash:
            worlds.append(world)
        else:
            return worlds
        world.restart()
        for _ in range(2):
            world.requeue()
