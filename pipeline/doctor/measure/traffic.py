"""What the experiments send and receive: publishing, pulling, acknowledging, and readings by snapshot."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from google.pubsub_v1 import PublishRequest

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.doctor.measure.place import LEASE, Place
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import ONCE_MORE, reported
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS, Pulls
from tidemark.pipeline.pubsub.received import ACK_ID
from tidemark.pipeline.pubsub.subscription import CONSUME

REQUEST_COUNTS_AS = 1000
"""Bytes that a request to publish or to pull is charged for at least."""

PUBLISH = "pubsub.topics.publish on the project"
LOOK_AGAIN = 0.1
TRIES = 5
"""How often a reading or a pull without an answer is tried."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, and how long at most. `patience` is how long anything that should happen is waited for."""

    messages: int = 3000
    over: timedelta = timedelta(seconds=20)
    rounds: int = 20
    snapshots_within: timedelta = timedelta(seconds=45)
    patience: timedelta = timedelta(seconds=20)
    quiet: timedelta = timedelta(seconds=2)
    monitoring_within: timedelta = timedelta(minutes=6)


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery of a message, and the monotonic clock then."""

    message_id: str
    published: datetime
    attributes: dict[str, str]
    data: bytes
    ack_id: str
    at: float


class Traffic:
    """The calls on one place. `charged_bytes` is what publishing and pulling count for, by the price list."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self._place, self._plan, self._clock = place, plan, place.clock
        self._pulls: dict[str, Pulls] = {}
        self._unanswered = 0  # pulls in a row
        self._sent: set[str] = set()
        self._acknowledged: dict[str, set[str]] = {}
        self.charged_bytes = 0

    def close(self) -> None:
        """Pull no more."""
        for pulls in self._pulls.values():
            pulls.close()

    def _publish(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        request = PublishRequest(topic=self._place.topic, messages=messages)
        self.charged_bytes += max(REQUEST_COUNTS_AS, PublishRequest.pb(request).ByteSize())
        with reported("publish to", self._place.topic, PUBLISH, then=ONCE_MORE):
            ids = list(self._place.publisher.publish(request=request, **self._place.bounds).message_ids)
        self._sent.update(ids)
        return ids

    def _received(self, path: str, seconds: float) -> list[Received]:
        """What one answer brings within so many seconds."""
        if path not in self._pulls:
            settings = self._place.settings.model_copy(update={"ack_deadline": LEASE})
            make = partial(Pulls, keeps=True, on_call=lambda: None)
            self._pulls[path] = make(self._place.subscriber, path, self._clock, settings)
        try:
            with reported("pull from", path, CONSUME, then=ONCE_MORE):
                table, size = self._pulls[path].take(1000, seconds)
            self._unanswered = 0
        except PubSubUnreachable:
            self._unanswered += 1
            if self._unanswered == TRIES:
                raise
            self._clock.sleep(LOOK_AGAIN)
            return []
        at = self._clock.monotonic()
        self.charged_bytes += max(REQUEST_COUNTS_AS, size) if len(table) else 0
        return [
            Received(
                row["message_id"], from_us(to_us(row["publish_time"])), dict(row["attributes"]), row["payload"],
                row[ACK_ID], at,
            )
            for row in table.to_pylist()
        ]  # fmt: skip

    def _take(self, path: str, wanted: Collection[str], within: timedelta | None = None) -> dict[str, Received]:
        """What comes until all of the wanted messages have, or the time is over."""
        until = self._clock.monotonic() + (within or self._plan.patience).total_seconds()
        found: dict[str, Received] = {}
        while not found.keys() >= set(wanted) and (left := until - self._clock.monotonic()) > 0:
            found |= {one.message_id: one for one in self._received(path, min(left, 1.0))}
        return found

    def _drain(self, path: str) -> bool:
        """Acknowledge everything that was published; False if some of it has not come."""
        wanted = self._sent - self._acknowledged.get(path, set())
        found = self._take(path, wanted)
        self._acknowledge(path, found.values())
        return found.keys() >= wanted

    def _acknowledge(self, path: str, received: Collection[Received]) -> None:
        if received:
            with reported("acknowledge on", path, CONSUME, then=ONCE_MORE):
                ack_ids = [one.ack_id for one in received]
                self._place.subscriber.acknowledge(subscription=path, ack_ids=ack_ids, **self._place.bounds)
            self._acknowledged.setdefault(path, set()).update(one.message_id for one in received)

    def _acknowledge_again(self, path: str) -> int:
        """Wait a moment, and acknowledge what came although it was acknowledged; how much did. Pub/Sub may deliver such
        a message again, which a snapshot then rightly shows."""
        again = [one for one in self._received(path, LOOK_AGAIN) if one.message_id in self._acknowledged[path]]
        self._acknowledge(path, again)
        return len(again)

    def _give_back(self, path: str, one: Received) -> None:
        request = {"subscription": path, "ack_ids": [one.ack_id], "ack_deadline_seconds": GIVEN_BACK_SECONDS}
        with reported("give back a message of", path, CONSUME, then=ONCE_MORE):
            self._place.subscriber.modify_ack_deadline(request=request, **self._place.bounds)

    def _backlog(self, path: str) -> SnapshotBacklog:
        """The reading as the pipeline takes it, under the measurement's label."""
        place = self._place
        return SnapshotBacklog(place.subscriber, path, self._clock, place.settings.call_timeout, labels=place.labels)

    def _read(self, backlog: SnapshotBacklog) -> datetime:
        for _ in range(TRIES - 1):
            try:
                return backlog.read().oldest_unacked
            except PubSubUnreachable:
                self._clock.sleep(LOOK_AGAIN)
        return backlog.read().oldest_unacked
