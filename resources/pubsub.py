"""The two subscriptions as a Dagster resource. Clients live as long as the code server."""

from datetime import timedelta
from functools import lru_cache

import dagster as dg
from google.cloud.monitoring_v3 import MetricServiceClient
from google.pubsub_v1 import SubscriberClient

from pipeline.clock import SystemClock
from pipeline.durations import parse_duration
from pipeline.pubsub.backlog import Backlog, SnapshotBacklog
from pipeline.pubsub.choice import AutoBacklog
from pipeline.pubsub.connection import subscriber_client
from pipeline.pubsub.monitoring import MonitoringBacklog, monitoring_client
from pipeline.pubsub.subscription import PubSubSubscription


class PubSubResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base and tracking, and how to read what is outstanding on each. Durations are written as `10s`."""

    base_subscription: str
    tracking_subscription: str
    emulator_host: str | None = None
    ack_deadline: str = "60s"
    pull_wait: str = "2s"
    call_timeout: str = "10s"
    reading: str = "auto"
    snapshot_max_backlog: int = 10_000_000
    monitoring_endpoint: str | None = None

    def base(self) -> PubSubSubscription:
        """The subscription that carries the data."""
        return self._subscription(self.base_subscription)

    def tracking(self) -> PubSubSubscription:
        """The subscription whose metadata is kept."""
        return self._subscription(self.tracking_subscription)

    def base_backlog(self) -> Backlog:
        """What is outstanding on base."""
        return self._backlog(self.base_subscription, self.snapshot_max_backlog)

    def tracking_backlog(self) -> Backlog:
        """What is outstanding on tracking, which is never far behind: by a snapshot whatever its size."""
        return self._backlog(self.tracking_subscription, None)

    def sweep(self) -> int:
        """Delete the snapshots of earlier readings that a crash left behind; how many there were. With monitoring
        alone none are taken, and no permission for them is needed."""
        if self.reading == "monitoring":
            return 0
        return sum(self._snapshot(path).sweep() for path in (self.tracking_subscription, self.base_subscription))

    def _subscription(self, path: str) -> PubSubSubscription:
        return PubSubSubscription(
            _client(self.emulator_host),
            path,
            SystemClock(),
            ack_deadline=parse_duration(self.ack_deadline),
            pull_wait=parse_duration(self.pull_wait),
            call_timeout=parse_duration(self.call_timeout),
        )

    def _backlog(self, path: str, snapshot_max_backlog: int | None) -> Backlog:
        has_metrics = self.emulator_host is None or self.monitoring_endpoint is not None
        if self.reading == "monitoring":
            return _monitoring(self.monitoring_endpoint, path, parse_duration(self.call_timeout))
        if self.reading == "auto" and has_metrics:
            return _auto(
                self.emulator_host,
                self.monitoring_endpoint,
                path,
                parse_duration(self.call_timeout),
                snapshot_max_backlog,
            )
        return self._snapshot(path)

    def _snapshot(self, path: str) -> SnapshotBacklog:
        return SnapshotBacklog(_client(self.emulator_host), path, SystemClock(), parse_duration(self.call_timeout))


@lru_cache(maxsize=8)
def _auto(
    emulator_host: str | None,
    monitoring_endpoint: str | None,
    path: str,
    call_timeout: timedelta,
    snapshot_max_backlog: int | None,
) -> AutoBacklog:
    """One for all ticks: it remembers what it learned."""
    clock = SystemClock()
    return AutoBacklog(
        SnapshotBacklog(_client(emulator_host), path, clock, call_timeout),
        _monitoring(monitoring_endpoint, path, call_timeout),
        clock,
        snapshot_max_backlog,
    )


def _monitoring(endpoint: str | None, path: str, call_timeout: timedelta) -> MonitoringBacklog:
    return MonitoringBacklog(_monitoring_client(endpoint), path, SystemClock(), call_timeout)


@lru_cache(maxsize=4)
def _client(emulator_host: str | None) -> SubscriberClient:
    return subscriber_client(emulator_host)


@lru_cache(maxsize=4)
def _monitoring_client(endpoint: str | None) -> MetricServiceClient:
    return monitoring_client(endpoint)
