"""Samples messages of the topic with a temporary subscription.

The pipeline's own subscriptions are not affected, because each subscription gets a copy of every message.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PubSubError
from tidemark.pipeline.pubsub.connection import ONCE_MORE, Resources, reported
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings_sections import DAY, PubSubSettings

PREFIX = "tidemark-sample-"

EXPIRES_AFTER = DAY
"""Time without use after which Pub/Sub deletes a temporary subscription that a killed process left behind. It is the
shortest time that Pub/Sub allows."""

LEASE, KEPT = timedelta(seconds=10), timedelta(minutes=10)
"""Ack deadline and message retention of a temporary subscription: the shortest times that Pub/Sub allows."""

MOST_BYTES = 64 << 20
"""Maximum size of a sample in bytes. Reason: a sample is held in memory."""

CREATE = "pubsub.subscriptions.create on the project and pubsub.topics.attachSubscription on the topic"
DELETE = "pubsub.subscriptions.delete on it"


def sample_messages(
    client: SubscriberClient, settings: PubSubSettings, clock: Clock, count: int, wait: timedelta
) -> list[pa.Table]:
    """Return up to `count` messages that are published to the topic within `wait`. Fewer are returned if their size
    reaches MOST_BYTES. Each message is a table of one row with the columns of MESSAGE. A redelivered message is
    returned once. The temporary subscription is deleted at the end, unless the process is killed.

    Raises PermissionMissing, PubSubUnreachable and, if the topic does not exist, SubscriptionMissing.
    """
    until = clock.monotonic() + wait.total_seconds()
    found: dict[str, pa.Table] = {}
    size = 0
    with _throw_away(client, settings) as path:
        subscription = PubSubSubscription(client, path, clock, settings, lease=LEASE)
        try:
            while len(found) < count and size < MOST_BYTES and (left := until - clock.monotonic()) > 0:
                batch = subscription.pull(count - len(found), MOST_BYTES - size, left)
                table = batch.messages.table
                found |= {one: table.slice(row, 1) for row, one in enumerate(table["message_id"].to_pylist())}
                size += batch.size_bytes
                subscription.acknowledge(batch.ack_ids)  # on this subscription only, so that no message is redelivered
        finally:
            subscription.close()
    return list(found.values())


def short_lived(path: str, topic: str) -> dict[str, Any]:
    """Return the request for a subscription with the shortest expiry and message retention that Pub/Sub allows."""
    return {
        "name": path,
        "topic": topic,
        "ack_deadline_seconds": int(LEASE.total_seconds()),
        "message_retention_duration": KEPT,
        "expiration_policy": {"ttl": EXPIRES_AFTER},
    }


@contextmanager
def _throw_away(client: SubscriberClient, settings: PubSubSettings) -> Iterator[str]:
    """Create a temporary subscription, yield its path, and delete it, even if its creation was interrupted."""
    path = f"projects/{settings.project}/subscriptions/{PREFIX}{uuid.uuid4().hex[:12]}"
    server = Resources(client)
    request = {**short_lived(path, settings.topic_path), "filter": settings.filter}
    is_made = True
    try:
        try:
            with reported("subscribe to", settings.topic_path, CREATE, then=ONCE_MORE), suppress(api.AlreadyExists):
                client.create_subscription(request=request, **server.bounds)
        except PubSubError:
            is_made = False
            raise
        yield path
    finally:
        try:
            server.delete("subscription", path, DELETE)
        except PubSubError as error:
            if is_made:
                raise type(error)(
                    f"{error}. Delete the temporary subscription; otherwise Pub/Sub deletes it after a day"
                ) from error
