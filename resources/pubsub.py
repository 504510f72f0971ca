"""The two subscriptions as a Dagster resource. Clients live as long as the code server."""

from functools import lru_cache

import dagster as dg
from google.pubsub_v1 import SubscriberClient

from pipeline.clock import SystemClock
from pipeline.durations import parse_duration
from pipeline.pubsub.backlog import SnapshotBacklog
from pipeline.pubsub.connection import subscriber_client
from pipeline.pubsub.subscription import PubSubSubscription


class PubSubResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base and tracking, and how to read what is outstanding on each. Durations are written as `10s`."""

    base_subscription: str
    tracking_subscription: str
    emulator_host: str | None = None
    ack_deadline: str = "60s"
    pull_wait: str = "2s"
    call_timeout: str = "10s"

    def base(self) -> PubSubSubscription:
        """The subscription that carries the data."""
        return self._subscription(self.base_subscription)

    def tracking(self) -> PubSubSubscription:
        """The subscription whose metadata is kept."""
        return self._subscription(self.tracking_subscription)

    def base_backlog(self) -> SnapshotBacklog:
        """What is outstanding on base."""
        return self._backlog(self.base_subscription)

    def tracking_backlog(self) -> SnapshotBacklog:
        """What is outstanding on tracking."""
        return self._backlog(self.tracking_subscription)

    def _subscription(self, path: str) -> PubSubSubscription:
        return PubSubSubscription(
            _client(self.emulator_host),
            path,
            SystemClock(),
            ack_deadline=parse_duration(self.ack_deadline),
            pull_wait=parse_duration(self.pull_wait),
            call_timeout=parse_duration(self.call_timeout),
        )

    def _backlog(self, path: str) -> SnapshotBacklog:
        return SnapshotBacklog(_client(self.emulator_host), path, SystemClock(), parse_duration(self.call_timeout))


@lru_cache(maxsize=4)
def _client(emulator_host: str | None) -> SubscriberClient:
    return subscriber_client(emulator_host)
