"""A server of either kind, as the contract's tests see it: through the real client."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog

CLOCK = SystemClock()
DEADLINE_SECONDS = 10
LONG_SECONDS, SHORT_SECONDS = 30.0, 0.4
"""How long a pull waits where messages must come, and where none may: a server answers within milliseconds."""

OFFICIAL, OWN = "official_emulator", "own_pubsub"


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and a project of the test's own on it."""

    project: str
    publisher: PublisherClient
    subscriber: SubscriberClient

    def topic(self, name: str = "topic") -> str:
        path = f"projects/{self.project}/topics/{name}"
        self.publisher.create_topic(name=path)
        return path

    def subscription(self, topic: str, name: str = "base", **config: Any) -> str:
        path = f"projects/{self.project}/subscriptions/{name}"
        request = {"name": path, "topic": topic, "ack_deadline_seconds": DEADLINE_SECONDS, **config}
        self.subscriber.create_subscription(request=request)
        return path

    def snapshot_name(self) -> str:
        return f"projects/{self.project}/snapshots/snapshot"

    def publish(self, topic: str, count: int = 1) -> list[str]:
        messages = [{"data": b"x", "attributes": {"number": str(number)}} for number in range(count)]
        return list(self.publisher.publish(topic=topic, messages=messages).message_ids)

    def pull(self, subscription: str, wait: float = LONG_SECONDS, at_most: int = 1000) -> list[Any]:
        """One pull, as tidemark makes it: nothing within the wait is nothing."""
        request = {"subscription": subscription, "max_messages": at_most}
        try:
            return list(self.subscriber.pull(request=request, retry=None, timeout=wait)._pb.received_messages)
        except api.DeadlineExceeded:
            return []

    def leased_before_another(self) -> tuple[str, list[Any]]:
        """A subscription that holds two messages, of which the older is leased, and that one as it was received."""
        topic = self.topic()
        subscription = self.subscription(topic)
        self.publish(topic)
        received = self.pull(subscription)
        CLOCK.sleep(0.05)
        self.publish(topic)
        return subscription, received

    def drained(self, subscription: str, count: int) -> list[str]:
        """Pull and acknowledge so many messages, and whatever comes beyond; the ids."""
        ids: list[str] = []
        while received := self.pull(subscription, LONG_SECONDS if len(ids) < count else SHORT_SECONDS):
            self.acknowledge(subscription, received)
            ids += ids_of(received)
        return ids

    def acknowledge(self, subscription: str, received: list[Any]) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in received])

    def extend(self, subscription: str, received: list[Any], seconds: int) -> None:
        ids = [one.ack_id for one in received]
        self.subscriber.modify_ack_deadline(subscription=subscription, ack_ids=ids, ack_deadline_seconds=seconds)

    def oldest(self, subscription: str) -> datetime:
        return SnapshotBacklog(self.subscriber, subscription, ReadingTimes(CLOCK)).read().oldest_unacked


def ids_of(received: list[Any]) -> list[str]:
    return [one.message.message_id for one in received]


def published(received: Any) -> datetime:
    """To the microsecond."""
    stamp = received.message.publish_time
    return datetime.fromtimestamp(stamp.seconds, UTC) + timedelta(microseconds=stamp.nanos // 1000)
