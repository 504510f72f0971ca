"""Lets a process pull messages from both subscriptions, read the backlogs, and count its requests to Pub/Sub."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import MonitoringBacklog, ReadingTimes, SnapshotBacklog, monitoring_client
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.requirements import Drift, look_at_subscriptions
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.usage import Usage


class Subscriptions:
    """Pulls messages from the base and tracking subscriptions, and reads their backlogs. Objects that must outlive a
    tick, such as clients, are stored in `kept`. Several instances may share `kept`.

    Reading a backlog neither pulls nor acknowledges. With `pubsub.attach`, base's backlog is read only from Cloud
    Monitoring, unless `reading = "snapshot"` is set or the server is an emulator, which has no metrics.
    """

    def __init__(self, settings: Settings, kept: Kept, clock: Clock) -> None:
        self._settings, self._pubsub = settings, settings.pubsub
        self._kept = kept
        self._clock = clock

    def base(self) -> PubSubSubscription:
        """Return the base subscription, which carries the data. The object is kept between ticks, because a pull may be
        in flight; only one thread may use it. Raises BaseReadByOthers if another application reads base."""
        return self._subscription(self._pubsub.base_path)

    def tracking(self) -> PubSubSubscription:
        """Like `base`, for the tracking subscription. Only metadata of its messages is stored."""
        return self._subscription(self._pubsub.tracking_path)

    def base_backlog(self, user: str = "") -> BudgetedBacklog | MonitoringBacklog:
        """Return an object that reads base's backlog. Threads must not share the object, so each passes its own
        `user`."""
        return self._backlog(self._pubsub.base_path, user)

    def tracking_backlog(self, user: str = "") -> BudgetedBacklog | MonitoringBacklog:
        """Like `base_backlog`, for tracking's backlog."""
        return self._backlog(self._pubsub.tracking_path, user)

    def spending(self) -> Spending:
        """Return the object with the snapshot budget and this process's usage of Pub/Sub. All readings share it."""
        tick = self._settings.watermark.tick
        return self._kept.get("spending", lambda: Spending(self._clock, self._pubsub, tick))

    def sweep(self) -> int:
        """Delete the snapshots that earlier readings left behind, and return their number.

        A subscription whose backlog is read only from Cloud Monitoring is skipped: it has no snapshots, and the
        permission to delete them may be missing.
        """
        paths = (self._pubsub.tracking_path, self._pubsub.base_path)
        backlogs = [self._snapshot(path) for path in paths if not self._is_monitored(path)]
        names = backlogs[0].names() if backlogs else []  # both are in one project
        return sum(backlog.sweep(names) for backlog in backlogs)

    def drift(self) -> Drift:
        """Check the options of both subscriptions, and return the problems. Raises PubSubError if the options cannot be
        read."""
        found = look_at_subscriptions(self.client(), self._pubsub, self._settings.contract)
        return replace(found, dangers=(*found.dangers, *self.taken_away()))

    def taken_away(self) -> Iterator[str]:
        """If another application reads base, yield a sentence for each kind of message that left base without being
        read: messages skipped by a recent seek, and messages moved by a dead-letter policy. Yields nothing if tidemark
        does not use Cloud Monitoring or cannot read it."""
        path = self._pubsub.read_by_others
        if path is None or self._pubsub.monitoring is None or self._pubsub.reading == "snapshot":
            return
        yield from self._monitoring(path).taken_away()

    def client(self) -> SubscriberClient:
        """Return the client that all subscriptions share."""
        return self._kept.get("subscriber client", lambda: subscriber_client(*self._pubsub.server))

    def _subscription(self, path: str) -> PubSubSubscription:
        pubsub, tick, client = self._pubsub, self._settings.watermark.tick, self.client()
        count = partial(self.spending().count, Usage(pulls=1))
        return self._kept.get(path, lambda: PubSubSubscription(client, path, self._clock, pubsub, tick, count))

    def _is_monitored(self, path: str) -> bool:
        pubsub = self._pubsub
        if pubsub.reading != "auto":
            return pubsub.reading == "monitoring"
        return path == pubsub.read_by_others and pubsub.monitoring is not None

    def _backlog(self, path: str, user: str) -> BudgetedBacklog | MonitoringBacklog:
        if self._is_monitored(path):
            return self._monitoring(path)
        has_metrics = self._pubsub.reading == "auto" and self._pubsub.monitoring is not None
        monitoring = self._monitoring(path) if has_metrics else None
        return self._kept.get(
            ("backlog", path, user),
            lambda: BudgetedBacklog(self._snapshot(path), self.spending(), path, user, monitoring),
        )

    def _snapshot(self, path: str) -> SnapshotBacklog:
        times = self._kept.get(("reading times",), lambda: ReadingTimes(self._clock))
        return SnapshotBacklog(self.client(), path, times)

    def _monitoring(self, path: str) -> MonitoringBacklog:
        if (server := self._pubsub.monitoring) is None:
            raise ReadingUnavailable('an emulator has no metrics; set pubsub.reading to "auto" or "snapshot"')
        client = self._kept.get("monitoring client", lambda: monitoring_client(server))
        return MonitoringBacklog(client, path, self._clock)
