"""A topic and its subscriptions by hand, which keep Pub/Sub's contract and fail a test that breaks ours.

A message that was not acknowledged in time comes again, in any order; what is acknowledged must be durable.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.pubsub_v1 import PubsubMessage

from pipeline.clock import ManualClock, from_us, to_us
from pipeline.errors import PubSubError, ReadingUnavailable
from pipeline.heartbeat import FieldKind, Heartbeat, HeartbeatReader, MessageContract
from pipeline.lake.layout import Lake
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.store.address import open_objects
from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.pubsub.subscription import Acknowledged, PulledBatch
from pipeline.settings_sections import LakeSettings
from pipeline.ticks.budget import Budget
from pipeline.ticks.landing import Landed, land
from pipeline.ticks.tracking import Tracked, track
from pipeline.watermark.histogram import BUCKET_US, Histogram
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading
from pipeline.watermark.state import Entry, Snapshot
from tests.watermark.builders import START, at

FIELDS = {"load": FieldKind.NUMBER}
CONTRACT = MessageContract(
    event_time_attribute="event_time",
    stream_id_attribute="stream_id",
    publisher_id_attribute="heartbeat_id",
    event_time_field=None,
    stream_id_field=None,
    first_event_time=START - timedelta(days=1),
    max_future_skew=timedelta(minutes=5),
    fields=FIELDS,
)
AMPLE = Budget(max_messages=1000, max_bytes=1 << 20, max_time=timedelta(seconds=20), batch_messages=100)
PULL = timedelta(milliseconds=100)
"""How long a pull takes."""


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Steps:
    """What was done outside of the process, in order; `dies_at` is the number of the step at which it ends."""

    taken: list[str] = field(default_factory=list)
    dies_at: int | None = None

    def take(self, step: str) -> None:
        self.taken.append(step)
        if self.dies_at == len(self.taken):
            raise Crash

    def of_kind(self, *kinds: str) -> list[str]:
        """The steps that begin with one of these words."""
        return [step for step in self.taken if step.startswith(kinds)]


class FakeTopic:
    """Messages with the publish time of the moment they were published at."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.messages: list[Any] = []

    def publish(
        self,
        event_time: float | str | None,
        *,
        stream: str | None = "a",
        payload: Mapping[str, Any] | bytes | None = None,
        publisher_id: str | None = None,
    ) -> Any:
        """One message: its event time in seconds from the start, or the text of the attribute, or none."""
        attributes = {
            "event_time": to_written(event_time),
            "stream_id": stream,
            "heartbeat_id": publisher_id,
        }
        message = PubsubMessage(
            data=payload if isinstance(payload, bytes) else json.dumps(payload or {}).encode(),
            attributes={name: value for name, value in attributes.items() if value is not None},
            message_id=f"m{len(self.messages)}",
            publish_time=self.clock.now(),
        )._pb
        self.messages.append(message)
        return message


def to_written(event_time: float | str | None) -> str | None:
    """How a source writes an event time: milliseconds since the epoch."""
    if event_time is None or isinstance(event_time, str):
        return event_time
    return str(to_us(at(event_time)) // 1000)


@dataclass
class Lease:
    """A delivery: it ends at a moment, or (None) when whoever extends it stops."""

    number: int
    ends: datetime | None


class FakeSubscription:
    """One subscription of the topic. `not_durable` is asked which messages of a batch could still be lost."""

    def __init__(
        self,
        name: str,
        topic: FakeTopic,
        steps: Steps,
        not_durable: Callable[[Sequence[Any]], list[str]],
        *,
        ack_deadline: timedelta = timedelta(seconds=60),
        redelivered: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.steps = steps
        self.pull_fails: PubSubError | None = None
        self.acknowledgements_that_fail = 0
        self._topic = topic
        self._clock = topic.clock
        self._not_durable = not_durable
        self._ack_deadline = ack_deadline
        self._redelivered = redelivered
        self._rng = random.Random(seed)
        self._leases: dict[int, list[Lease]] = {}
        self._deliveries = 0
        self._acknowledged: set[int] = set()

    @property
    def path(self) -> str:
        return f"projects/p/subscriptions/{self.name}"

    @property
    def unacknowledged(self) -> list[Any]:
        """What will come again, or for the first time."""
        return [m for number, m in enumerate(self._topic.messages) if number not in self._acknowledged]

    def taken_by_somebody_else(self, message: Any) -> None:
        """Another reader of this subscription, or a seek forward, takes a message away."""
        self._acknowledged.add(self._topic.messages.index(message))

    def pull(self, max_messages: int, max_bytes: int, seconds: float) -> PulledBatch:
        assert max_messages > 0
        assert max_bytes > 0
        assert seconds > 0
        self.steps.take(f"pull {self.name}")
        if self.pull_fails is not None:
            raise self.pull_fails
        self._clock.advance(PULL)
        due = [number for number in range(len(self._topic.messages)) if self._is_due(number)]
        self._rng.shuffle(due)
        messages, ack_ids, size = [], [], 0
        for number in due[:max_messages]:
            if size >= max_bytes:
                break
            self._deliveries += 1
            lease = Lease(self._deliveries, self._clock.now() + self._ack_deadline)
            self._leases.setdefault(number, []).append(lease)
            messages.append(self._topic.messages[number])
            ack_ids.append(f"{number}:{lease.number}")
            size += self._topic.messages[number].ByteSize()
        self.steps.take(f"pulled {self.name}")
        return PulledBatch(messages, ack_ids, size)

    def _is_due(self, number: int) -> bool:
        now = self._clock.now()
        if any(lease.ends is None or lease.ends > now for lease in self._leases.get(number, [])):
            return False
        return number not in self._acknowledged or self._rng.random() < self._redelivered

    @contextmanager
    def leased(self, ack_ids: Sequence[str]) -> Iterator[None]:
        leases = [self._lease(ack_id) for ack_id in ack_ids]
        for lease in leases:
            lease.ends = None
        try:
            yield
        finally:
            for lease in leases:
                lease.ends = self._clock.now() + self._ack_deadline

    def _lease(self, ack_id: str) -> Lease:
        number, delivery = map(int, ack_id.split(":"))
        return next(lease for lease in self._leases[number] if lease.number == delivery)

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        self.steps.take(f"acknowledge {self.name}")
        too_early = self._not_durable([self._topic.messages[int(ack_id.split(":")[0])] for ack_id in ack_ids])
        assert not too_early, f"acknowledged on {self.name}, and not durable: {too_early}"
        outcome = Acknowledged()
        for ack_id in ack_ids:
            lease = self._lease(ack_id)
            if self.acknowledgements_that_fail:
                self.acknowledgements_that_fail -= 1
                outcome += Acknowledged(failed=1, problems=(f"{ack_id} was refused",))
                continue
            outcome += Acknowledged(count=1)
            if lease.ends is None or lease.ends > self._clock.now():  # else too late, and the message comes again
                self._acknowledged.add(int(ack_id.split(":")[0]))
        self.steps.take(f"acknowledged {self.name}")
        return outcome


class FakeBacklog:
    """The oldest unacknowledged publish time of a fake subscription, or a reason why it cannot be told."""

    def __init__(self, subscription: FakeSubscription, clock: ManualClock) -> None:
        self._subscription = subscription
        self._clock = clock
        self.problem: ReadingUnavailable | None = None

    def read(self) -> Reading:
        self._subscription.steps.take(f"read {self._subscription.name}")
        if self.problem is not None:
            raise self.problem
        now = self._clock.now()
        oldest = min((published_at(message) for message in self._subscription.unacknowledged), default=now)
        self._clock.advance(PULL)
        return Reading(observed_at=now, oldest_unacked=oldest, names_a_message=oldest < now - timedelta(seconds=1))


def published_at(message: Any) -> datetime:
    """A plain message's publish time."""
    return from_us(message.publish_time.seconds * 1_000_000 + message.publish_time.nanos // 1000)


class StepwiseObjects:
    """Objects of the lake, whose creation is a step; `before` and `after` raise what a test lets go wrong."""

    def __init__(self, objects: ObjectStore, steps: Steps) -> None:
        self._objects = objects
        self._steps = steps
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []

    @property
    def uri(self) -> str:
        return self._objects.uri

    def create(self, name: str, content: bytes) -> None:
        self._steps.take(f"create {name}")
        _fail(self.before)
        self._objects.create(name, content)
        self._steps.take(f"created {name}")
        _fail(self.after)

    def read(self, name: str) -> bytes:
        return self._objects.read(name)

    def names(self, prefix: str) -> Iterator[str]:
        return self._objects.names(prefix)

    def delete(self, name: str) -> None:
        self._objects.delete(name)


class StepwiseTable:
    """A table of the lake, whose append is a step; `before` and `after` raise what a test lets go wrong."""

    def __init__(self, name: str, table: Heartbeats | Quarantine, steps: Steps) -> None:
        self._name = name
        self._table = table
        self._steps = steps
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []

    def append(self, rows: pa.Table) -> None:
        self._steps.take(f"append {self._name}")
        _fail(self.before)
        self._table.append(rows)
        self._steps.take(f"appended {self._name}")
        _fail(self.after)


def _fail(faults: list[Exception | None]) -> None:
    fault = faults.pop(0) if faults else None
    if fault is not None:
        raise fault


class World:
    """A topic with its two subscriptions, a lake in a folder or elsewhere, and the processes that tick, one after
    another.

    Everything but `clock`, `topic`, the subscriptions and the lake is lost when a process `restarts`.
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
        self.topic = FakeTopic(self.clock)
        self.steps = Steps()
        self.policy = Policy() if policy is None else policy
        self.reader = HeartbeatReader(CONTRACT)
        self._entries: dict[int, Entry] = {}
        self.tracking, self.base = (
            FakeSubscription(name, self.topic, self.steps, not_durable, redelivered=redelivered, seed=seed)
            for name, not_durable in (("tracking", self.not_tracked), ("base", self.not_landed))
        )
        self.tracking_backlog = FakeBacklog(self.tracking, self.clock)
        self.base_backlog = FakeBacklog(self.base, self.clock)
        self.restart()

    def restart(self) -> None:
        """A new process: it knows what the lake holds."""
        self.steps = self.tracking.steps = self.base.steps = Steps()
        lake = self.lake()
        self.objects = StepwiseObjects(self.stored(), self.steps)
        self.log = TrackingLog(self.objects, checkpoint_every=4)
        self.heartbeats = StepwiseTable("heartbeats", lake.heartbeats(), self.steps)
        self.quarantine = StepwiseTable("quarantine", lake.quarantine(), self.steps)

    def lake(self) -> Lake:
        """What somebody else sees of the lake."""
        return Lake(self.lake_settings, FIELDS, self.clock)

    def stored(self) -> ObjectStore:
        """What somebody else sees of its objects."""
        return open_objects(self.lake_settings)

    def track(self, budget: Budget = AMPLE) -> Tracked:
        return track(
            self.tracking,
            tracking_backlog=self.tracking_backlog,
            base_backlog=self.base_backlog,
            log=self.log,
            reader=self.reader,
            policy=self.policy,
            budget=budget,
            clock=self.clock,
        )

    def land(self, budget: Budget = AMPLE) -> Landed:
        return land(
            self.base,
            heartbeats=self.heartbeats,  # type: ignore[arg-type]
            quarantine=self.quarantine,  # type: ignore[arg-type]
            log=self.log,
            reader=self.reader,
            budget=budget,
            clock=self.clock,
        )

    def tick(self) -> None:
        """Both subscriptions, once."""
        self.track()
        self.land()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(timedelta(seconds=seconds))

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
        if event_us is None:
            return bool(of_bucket.any())
        same = of_bucket & (histogram.event_bucket == event_us // BUCKET_US)
        return bool((same & (histogram.min_event_us <= event_us)).any())

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
        table = opened._table.current()
        found: list[dict[str, Any]] = (
            [] if table is None else table.to_pyarrow_table().sort_by("message_id").to_pylist()
        )
        return found
