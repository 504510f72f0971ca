"""The two subscriptions as a Dagster resource."""

from functools import partial

import dagster as dg
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import Backlog, ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.drift import Drift, look_at_subscriptions
from tidemark.pipeline.pubsub.monitoring import AutoBacklog, MonitoringBacklog, monitoring_client
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.usage import Usage


class PubSubResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Base and tracking, and readings of their backlogs. The clients are kept between ticks."""

    settings: dg.ResourceDependency[Settings]
    kept: dg.ResourceDependency[Kept]
    clock: dg.ResourceDependency[Clock]

    def base(self) -> PubSubSubscription:
        """The subscription that carries the data. Kept between ticks, for one thread: a pull may be under way."""
        return self._subscription(self.settings.pubsub.base_path)

    def tracking(self) -> PubSubSubscription:
        """The subscription whose metadata is kept. Kept between ticks likewise."""
        return self._subscription(self.settings.pubsub.tracking_path)

    def base_backlog(self, user: str = "") -> Backlog:
        """Readings of base, not shared between threads: each `user` gets its own."""
        return self._backlog(self.settings.pubsub.base_path, self.settings.pubsub.snapshot_max_backlog, user)

    def tracking_backlog(self, user: str = "") -> Backlog:
        """Readings of tracking, likewise. Its backlog is small, so only the budget bounds them."""
        return self._backlog(self.settings.pubsub.tracking_path, None, user)

    def spending(self) -> Spending:
        """What this process uses, and the budget of snapshots: one for all readings."""
        pubsub, tick = self.settings.pubsub, self.settings.watermark.tick
        paths = {"base": pubsub.base_path, "tracking": pubsub.tracking_path}
        return self.kept.get("spending", lambda: Spending(self.clock, pubsub.snapshot_bytes_a_day, tick, **paths))

    def sweep(self) -> int:
        """Delete the snapshots that a crash during an earlier reading left behind, and return how many there were.

        With `reading = "monitoring"` there are none, and no permission for snapshots is needed.
        """
        pubsub = self.settings.pubsub
        if pubsub.reading == "monitoring":
            return 0
        return sum(self._snapshot(path).sweep() for path in (pubsub.tracking_path, pubsub.base_path))

    def drift(self) -> Drift:
        """What is wrong with the two subscriptions as they are now. Raises PubSubError where they cannot be seen."""
        return look_at_subscriptions(self._client(), self.settings.pubsub, self.settings.contract)

    def _subscription(self, path: str) -> PubSubSubscription:
        pubsub, tick = self.settings.pubsub, self.settings.watermark.tick
        count = partial(self.spending().count, Usage(pulls=1))
        return self.kept.get(path, lambda: PubSubSubscription(self._client(), path, self.clock, pubsub, tick, count))

    def _backlog(self, path: str, snapshot_max_backlog: int | None, user: str = "") -> Backlog:
        pubsub = self.settings.pubsub
        if pubsub.reading == "monitoring":
            return self._monitoring(path)
        if pubsub.reading == "snapshot" or (pubsub.emulator_host is not None and pubsub.monitoring_endpoint is None):
            return BudgetedBacklog(self._snapshot(path), self.spending(), path, user=user)
        monitoring = self._monitoring(path)
        # Kept between ticks because it remembers refusals and sizes.
        chosen = self.kept.get(
            ("backlog", path, user),
            lambda: AutoBacklog(self._snapshot(path), monitoring, self.clock, snapshot_max_backlog),
        )
        # Its answers are minutes old: they tell a decision something, and nothing to someone who pulls.
        return BudgetedBacklog(chosen, self.spending(), path, user=user, monitoring=None if user else monitoring)

    def _snapshot(self, path: str) -> SnapshotBacklog:
        times = self.kept.get(("reading times",), lambda: ReadingTimes(self.clock))
        return SnapshotBacklog(self._client(), path, self.clock, self.settings.pubsub.call_timeout, times)

    def _monitoring(self, path: str) -> MonitoringBacklog:
        pubsub = self.settings.pubsub
        client = self.kept.get(
            "monitoring client", lambda: monitoring_client(pubsub.monitoring_endpoint, pubsub.impersonate)
        )
        return MonitoringBacklog(client, path, self.clock, pubsub.call_timeout)

    def _client(self) -> SubscriberClient:
        return self.kept.get("subscriber client", lambda: subscriber_client(*self.settings.pubsub.server))
