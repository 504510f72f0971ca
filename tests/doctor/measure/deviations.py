"""Pub/Subs that deviate from what the method expects, one in each way, and a clock that runs ahead of the machine's."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

import grpc
from google.pubsub_v1 import types

from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.fake_monitoring import CLAUSE, FakeMonitoring
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import SNAPSHOT_LIFETIME, PubSubModel
from tidemark.local.emulator.server import served
from tidemark.local.emulator.unacknowledged import Delivered
from tidemark.pipeline.clock import EPOCH, SystemClock, from_us, to_us
from tidemark.pipeline.doctor.measure.traffic import Plan
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD
from tidemark.pipeline.pubsub.requirements import wanted
from tidemark.pipeline.settings_sections import PubSubSettings

STALE = timedelta(seconds=30)
QUICK = Plan(
    messages=100, over=timedelta(seconds=0.5), rounds=3, patience=timedelta(seconds=20), quiet=timedelta(seconds=0.3)
)


class Fast(SystemClock):
    """Thirty seconds pass in one."""

    TIMES = 30

    def __init__(self) -> None:
        self._began, self._since = super().now(), time.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return (time.monotonic() - self._since) * self.TIMES

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.TIMES)


class ForgetsTheOldest(PubSubModel):
    """A snapshot always expires seven days after its creation."""

    def create_snapshot(self, name: str, subscription: str, at: datetime, labels: Any = None) -> Any:
        snapshot = super().create_snapshot(name, subscription, at, labels)
        snapshot.expire_time.FromDatetime(at + SNAPSHOT_LIFETIME)
        return snapshot


class ShowsAcknowledgementsLate(PubSubModel):
    """A snapshot holds what was acknowledged within the last 30 s."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.gone: list[tuple[str, datetime, datetime]] = []

    def acknowledge(self, subscription: str, ack_ids: Sequence[str], at: datetime) -> None:
        messages = self._state(subscription).outstanding.messages
        for ack_id in ack_ids:
            if (message := messages.get(int(ack_id.rpartition(".")[2]))) is not None:
                self.gone.append((subscription, at, published(message)))
        super().acknowledge(subscription, ack_ids, at)

    def create_snapshot(self, name: str, subscription: str, at: datetime, labels: Any = None) -> Any:
        snapshot = super().create_snapshot(name, subscription, at, labels)
        late = [when for path, then, when in self.gone if path == subscription and at - then < STALE]
        expiries = [snapshot.expire_time.ToDatetime(EPOCH.tzinfo), *(when + SNAPSHOT_LIFETIME for when in late)]
        snapshot.expire_time.FromDatetime(min(expiries))
        return snapshot


class DeviatesOtherwise(PubSubModel):
    """A snapshot's expiry is a whole minute, at least one too early, a filter is kept and every message passes, and a
    redelivery has another publish time."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.delivered: set[tuple[str, str]] = set()

    def create_snapshot(self, *args: Any, **named: Any) -> Any:
        snapshot = super().create_snapshot(*args, **named)
        snapshot.expire_time.seconds -= 60 + snapshot.expire_time.seconds % 60
        snapshot.expire_time.nanos = 0
        return snapshot

    def create_subscription(self, config: Any, at: datetime) -> None:
        super().create_subscription(config, at)
        self._state(config.name).passes = None

    def pull(self, subscription: str, *args: Any, **named: Any) -> list[Delivered]:
        found = []
        for one in super().pull(subscription, *args, **named):
            message = copy_of(one.message)
            if (key := (subscription, message.message_id)) in self.delivered:
                message.publish_time.seconds += 5
            self.delivered.add(key)
            found.append(Delivered(one.ack_id, message))
        return found


class Transforms(PubSubModel):
    """A subscription's transform takes the payload away."""

    def pull(self, subscription: str, *args: Any, **named: Any) -> list[Delivered]:
        found = super().pull(subscription, *args, **named)
        if not self._state(subscription).config.message_transforms:
            return found
        for number, one in enumerate(found):
            found[number] = Delivered(one.ack_id, copy_of(one.message))
            found[number].message.data = b""
        return found


class Sampling(FakeMonitoring):
    """Cloud Monitoring: each whole minute the age of a subscription's oldest message, visible 100 s later."""

    def __init__(self, model: PubSubModel, clock: SystemClock, project: str) -> None:
        super().__init__(clock.now)
        self.model, self.project = model, project

    def list_time_series(self, request: Any, context: grpc.ServicerContext) -> Any:
        name, now = dict(CLAUSE.findall(request.filter))["resource.labels.subscription_id"], self.now()
        oldest = min(map(published, self.model.unacknowledged(f"projects/{self.project}/subscriptions/{name}")))
        self.series = []
        end = from_us(to_us(oldest) // 60_000_000 * 60_000_000) + SAMPLE_PERIOD
        while end <= now:
            age = int((end - oldest).total_seconds())
            self.sampled(name, end, age=age, undelivered=1, visible_after=timedelta(seconds=100), project=self.project)
            end += SAMPLE_PERIOD
        return super().list_time_series(request, context)


def published(message: Any) -> datetime:
    """A message's publish time."""
    return message.publish_time.ToDatetime(EPOCH.tzinfo)


def copy_of(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


@dataclass
class Service:
    """A deviating Pub/Sub with a topic and two subscriptions that somebody relies on."""

    model: PubSubModel
    pubsub: PubSubSettings

    def left(self) -> list[str]:
        """Everything that is there besides."""
        own = {self.pubsub.topic_path, self.pubsub.tracking_path, self.pubsub.base_path}
        snapshots = self.model.list_snapshots(SystemClock().now())
        found = [*self.model.list_topics(), *self.model.list_subscriptions(), *snapshots]
        return [one.name for one in found if one.name not in own]

    def own_messages(self) -> list[int]:
        """How many messages wait on the subscriptions that somebody relies on."""
        paths = (self.pubsub.tracking_path, self.pubsub.base_path)
        return [len(list(self.model.unacknowledged(path))) for path in paths]


@contextmanager
def service(
    model: type[PubSubModel] = PubSubModel,
    faults: Faults = Faults(),  # noqa: B008 frozen
    clock: SystemClock | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
) -> Iterator[Service]:
    """The service, until the block is left: then nothing is there that was not before, and nobody's message is gone."""
    clock = clock or SystemClock()
    made = model(rng=Random(0), faults=faults)
    with served(made, clock=clock, interceptors=interceptors) as address:
        pubsub = unique_pubsub(address).model_copy(update={"emulator": "local"})
        given = Service(made, pubsub)
        made.faults = Faults()
        made.create_topic(types.Topic.pb()(name=pubsub.topic_path))
        for path in (pubsub.tracking_path, pubsub.base_path):
            made.create_subscription(types.Subscription.pb(types.Subscription(wanted(pubsub, path))), clock.now())
        made.publish(pubsub.topic_path, [types.PubsubMessage.pb()(data=b"of somebody")], clock.now())
        made.faults = faults
        yield given
    made.faults = Faults()
    assert given.left() == []
    assert given.own_messages() == [1, 1]
