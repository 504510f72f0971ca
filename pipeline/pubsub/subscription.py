"""Pulling and acknowledging: batches of what unary pulls bring, leases that are extended while a batch is written.

Acknowledging is the caller's last step: a batch is acknowledged only after it is durable.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Thread
from typing import Any, Protocol
from weakref import finalize

from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PubSubError
from tidemark.pipeline.pubsub.connection import TRANSIENT, reported, retrying
from tidemark.pipeline.pubsub.pulls import IDS_PER_CALL, Pulls
from tidemark.pipeline.settings_sections import PullSettings
from tidemark.pipeline.settings_types import ZERO

logger = logging.getLogger(__name__)

KEPT_SHARE = 0.5
"""The share of the ack deadline for which a pull may bring what nobody takes yet."""

AHEAD_MESSAGES = 10_000
"""The most messages that are pulled while a batch is processed."""

QUICK_SHARE = 0.25
"""Nothing is pulled while a batch is processed if the one before took longer than this share of the ack deadline."""

CONSUME = "pubsub.subscriptions.consume (roles/pubsub.subscriber) on it"


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Messages that Pub/Sub has leased to us, as plain protobuf (`google.pubsub.v1.PubsubMessage`), with the ids
    that acknowledge them, in the same order."""

    messages: Sequence[Any]
    ack_ids: Sequence[str]
    size_bytes: int

    def __len__(self) -> int:
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The result of an acknowledgement. Messages for which it failed are durable, and are delivered again."""

    count: int = 0
    failed: int = 0
    problems: tuple[str, ...] = field(default=())

    def __add__(self, other: "Acknowledged") -> "Acknowledged":
        return Acknowledged(self.count + other.count, self.failed + other.failed, (*self.problems, *other.problems)[:5])


class Subscription(Protocol):
    """A subscription, as a tick uses it."""

    @property
    def path(self) -> str:
        """The full resource name."""

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        """A batch, as far as it comes within the bounds; an empty one does not prove an empty backlog. So many messages
        more may be pulled `ahead` while its leases are kept, for the next batch."""

    def leased(self, ack_ids: Sequence[str]) -> AbstractContextManager[None]:
        """A context in which the leases of these messages are extended before they run out."""

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        """Tell Pub/Sub that these messages are durable."""


class PullMeter(Protocol):
    """Counts pulls, from any thread."""

    def called(self) -> None:
        """A pull was sent."""

    def pulled(self, messages: int, size_bytes: int) -> None:
        """Messages were pulled."""


class PubSubSubscription:
    """A subscription of the service or of the emulator.

    A pull that is under way when a batch ends goes on, and belongs to the next batch: keep the instance, or close it.
    `idle` says how long nobody may pull in between; what comes meanwhile is given back if its lease would not last.
    """

    def __init__(
        self,
        client: SubscriberClient,
        path: str,
        clock: Clock,
        settings: PullSettings,
        idle: timedelta = ZERO,
        meter: PullMeter | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._clock = clock
        self._settings = settings
        self._lease_seconds = settings.ack_deadline.total_seconds()
        self._pulls = Pulls(
            client,
            path,
            clock,
            at_once=settings.most_pulls_at_once,
            lease_seconds=self._lease_seconds,
            keeps=idle.total_seconds() <= self._lease_seconds * KEPT_SHARE,
            on_call=None if meter is None else meter.called,
        )
        self._meter = meter
        self._ahead = 0
        self._is_quick = True
        finalize(self, self._pulls.close)

    @property
    def path(self) -> str:
        return self._path

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        """Pull until one of the bounds is reached, or nothing comes for as long as an empty pull waits.

        A batch is pulled within a third of the ack deadline, so that its first lease outlives its pulling.
        Raises PubSubUnreachable, SubscriptionMissing, PermissionMissing, if nothing was pulled before.
        """
        until = self._clock.monotonic() + min(seconds, self._lease_seconds / 3)
        wait = self._settings.pull_wait.total_seconds()
        messages: list[Any] = []
        ack_ids: list[str] = []
        size = 0
        while len(messages) < max_messages and size < max_bytes and (left := until - self._clock.monotonic()) > 0:
            try:
                with reported("pull from", self._path, CONSUME):
                    taken, taken_bytes = self._pulls.take(max_messages - len(messages), min(wait, left))
            except PubSubError as error:
                if not messages:
                    self._pulls.pause()
                    raise
                logger.warning("a batch ends early: %s", error)
                ahead = 0
                break
            if not taken:
                ahead = 0
                break
            size += taken_bytes
            for received in taken:
                messages.append(received.message)
                ack_ids.append(received.ack_id)
        self._pulls.pause()
        self._ahead = min(ahead, AHEAD_MESSAGES)
        if self._meter is not None:
            self._meter.pulled(len(messages), size)
        return PulledBatch(messages, ack_ids, size)

    def close(self) -> None:
        """Give back what was pulled ahead. Pulling again is allowed."""
        self._pulls.close()

    @contextmanager
    def leased(self, ack_ids: Sequence[str]) -> Iterator[None]:
        """Extend the leases every third of the ack deadline for as long as the block runs, and meanwhile pull ahead.

        An extension that fails is logged and tried again: at worst the messages are delivered twice.
        """
        done = Event()

        def keep() -> None:
            while not done.wait(self._lease_seconds / 3):
                self._extend(ack_ids)

        keeper = Thread(target=keep, name=f"leases of {self._path}", daemon=True)
        keeper.start()
        began, ahead, self._ahead = self._clock.monotonic(), self._ahead, 0
        try:
            if self._is_quick:
                self._pulls.go_ahead(ahead)
            yield
        finally:
            self._pulls.pause()
            self._is_quick = self._clock.monotonic() - began < self._lease_seconds * QUICK_SHARE
            done.set()
            keeper.join()

    def _extend(self, ack_ids: Sequence[str]) -> None:
        for start in range(0, len(ack_ids), IDS_PER_CALL):
            try:
                self._client.modify_ack_deadline(
                    subscription=self._path,
                    ack_ids=list(ack_ids[start : start + IDS_PER_CALL]),
                    ack_deadline_seconds=int(self._lease_seconds),
                    retry=None,
                    timeout=self._settings.call_timeout.total_seconds(),
                )
            except api.GoogleAPICallError as error:
                logger.warning("leases on %s were not extended, messages may come again: %s", self._path, error)

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        """Acknowledge in chunks. A chunk that fails is reported, and the others go on.

        Raises SubscriptionMissing and PermissionMissing, which trying again does not mend.
        """
        outcome = Acknowledged()
        for start in range(0, len(ack_ids), IDS_PER_CALL):
            chunk = list(ack_ids[start : start + IDS_PER_CALL])
            with reported("acknowledge on", self._path, CONSUME):
                try:
                    self._client.acknowledge(
                        subscription=self._path,
                        ack_ids=chunk,
                        retry=retrying(self._settings.call_timeout),
                        timeout=self._settings.call_timeout.total_seconds(),
                    )
                    outcome += Acknowledged(count=len(chunk))
                except (*TRANSIENT, api.RetryError, api.InvalidArgument, api.FailedPrecondition) as error:
                    outcome += Acknowledged(failed=len(chunk), problems=(str(error),))
        if outcome.failed:
            logger.warning("%s: %d acknowledgements failed: %s", self._path, outcome.failed, outcome.problems)
        return outcome
