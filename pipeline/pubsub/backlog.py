"""Reads the publish time of a subscription's oldest unacknowledged message, by a snapshot.

Pub/Sub has no call for it. But a new snapshot expires seven days after the publish time of its oldest message, or seven
days after its creation if it has none. So the expiry is the reading, and the snapshot is deleted at once. Source: the
API reference of `Snapshot.expire_time`.
"""

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.errors import PubSubError, SnapshotRefused, SubscriptionMissing
from tidemark.pipeline.pubsub.connection import CALL_TIMEOUT, reported
from tidemark.pipeline.watermark.readings import Reading

logger = logging.getLogger(__name__)

LIFETIME = timedelta(days=7)
"""A snapshot expires this long after its oldest message's publish time."""

REFUSED_WITHIN = timedelta(hours=1)
"""A snapshot that would expire sooner is refused; its oldest message is then older than `LIFETIME` minus this."""

A_MESSAGE = timedelta(seconds=1)
"""A reading at least this much older than its moment is a message's publish time, not the snapshot's creation time."""

NAME_PREFIX = "tidemark-reading-"
READING = {"tidemark": "reading"}
"""The label of a reading's snapshot."""

CREATE = "pubsub.snapshots.create on the project and pubsub.subscriptions.consume on it"
DELETE = "pubsub.snapshots.delete on it"
LIST = "pubsub.snapshots.list on it"


STEADY = 0.999
"""Lower bound of the true time per time that the monotonic clock counts: it is slewed by at most 0.0005, and stops
while the machine is suspended."""


class ReadingTimes:
    """Determines when a reading was observed: by this machine's clock, or by the server's if that is provably later.

    A reading proves that the server's clock had reached it when the server answered. Since then, at least the time
    counted by the monotonic clock has passed. So a reading does not look older because a clock is behind or is set
    back.

    The readings of both subscriptions share an instance. Then a message on base that is older than `T`, by enough to
    distinguish it from an empty backlog, counts as a message by any clock: `T` was read before, and proves a moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server: tuple[datetime, float] | None = None

    def ask(self) -> tuple[datetime, float]:
        """Return the current time and the monotonic clock, before a request."""
        return self._clock.now(), self._clock.monotonic()

    def reading(self, asked: tuple[datetime, float], oldest: datetime) -> Reading:
        """Create the reading for an answer that has just arrived."""
        (asked_at, since), (answered_at, until) = asked, self.ask()
        observed_at = max(asked_at, oldest - timedelta(seconds=until - since), self._server_at(since) or asked_at)
        known = self._server_at(until)
        if known is None or oldest > known:
            self._server = (oldest, until)
        names_a_message = oldest < observed_at - A_MESSAGE
        return Reading(observed_at, oldest, names_a_message, answered_at=answered_at)

    def _server_at(self, monotonic: float) -> datetime | None:
        """Return the lower bound of the server's clock."""
        if self._server is None:
            return None
        moment, then = self._server
        return moment + timedelta(seconds=max(monotonic - then, 0) * STEADY)


class Backlog(Protocol):
    """Reads the oldest unacknowledged publish time of one subscription."""

    def read(self) -> Reading:
        """Return a reading. Raises ReadingUnavailable if it cannot be known now, and other PubSubErrors."""


class SnapshotBacklog:
    """Readings by snapshot, as precise as the service's expiry times (a millisecond on the official emulator)."""

    def __init__(
        self,
        client: SubscriberClient,
        subscription_path: str,
        clock: Clock,
        call_timeout: timedelta = CALL_TIMEOUT,
        times: ReadingTimes | None = None,
        labels: Mapping[str, str] = READING,
    ) -> None:
        self._client = client
        self._labels = labels
        self._subscription = subscription_path
        self._times = times or ReadingTimes(clock)
        self._timeout = call_timeout.total_seconds()
        _, project, _, name = subscription_path.split("/")
        self._project = f"projects/{project}"
        self._prefix = f"{self._project}/snapshots/{NAME_PREFIX}{name[:150]}-"

    def read(self) -> Reading:
        """Take a snapshot, read its expiry, delete it.

        Raises SnapshotRefused if the oldest message is less than an hour from a snapshot's limit of 7 days.
        """
        asked = self._times.ask()
        name = self._prefix + uuid.uuid4().hex
        request = {"name": name, "subscription": self._subscription, "labels": self._labels}
        with reported("take a snapshot of", self._subscription, CREATE):
            try:
                snapshot = self._client.create_snapshot(request=request, retry=None, timeout=self._timeout)
            except api.FailedPrecondition as error:
                raise SnapshotRefused(
                    f"Pub/Sub refuses a snapshot of {self._subscription}: {error.message}. Unless that names another "
                    "cause, its oldest message is less than an hour from a snapshot's limit of 7 days; the "
                    "watermark holds until that message has landed"
                ) from error
        # A plain datetime, not the client's subclass.
        reading = self._times.reading(asked, from_us(to_us(snapshot.expire_time)) - LIFETIME)
        self._delete(name)
        return reading

    def sweep(self) -> int:
        """Delete the snapshots left behind by crashed readings, and return their number."""
        with reported("list the snapshots of", self._project, LIST):
            found = self._client.list_snapshots(project=self._project, retry=None, timeout=self._timeout)
            leaked = [snapshot.name for snapshot in found if snapshot.name.startswith(self._prefix)]
        for name in leaked:
            self._delete(name)
        return len(leaked)

    def _delete(self, name: str) -> None:
        """Delete a snapshot. A failure is only logged: the reading is valid, and a sweep deletes the snapshot later."""
        try:
            with reported("delete", name, DELETE):
                self._client.delete_snapshot(snapshot=name, retry=None, timeout=self._timeout)
        except SubscriptionMissing:  # another sweep was faster
            pass
        except PubSubError as error:
            logger.warning("the snapshot of a reading stays until the next sweep: %s", error)
