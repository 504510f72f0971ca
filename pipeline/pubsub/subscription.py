"""Pulls batches of messages and acknowledges them. The leases of pulled messages are extended until the messages are
acknowledged or given back.

The caller must acknowledge a batch only after it has made the batch durable.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from weakref import finalize

import pyarrow as pa
from google.api_core import exceptions as api
from google.pubsub_v1 import AcknowledgeRequest, SubscriberClient

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.errors import BaseReadByOthers, PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.connection import ONE_TRY, TRANSIENT, bounded, reported
from tidemark.pipeline.pubsub.leases import IDS_PER_CALL, LEASE, Acknowledged, Leases
from tidemark.pipeline.pubsub.pulls import ACK_ID, GIVEN_BACK_SECONDS, NOTHING, Pulls
from tidemark.pipeline.settings_sections import ZERO, ServerSettings

logger = logging.getLogger(__name__)

KEPT_SHARE = 0.5
"""Messages are pulled in advance only if the time between two pulls is at most this fraction of the ack deadline."""

AHEAD_MESSAGES = 10_000
"""Maximum number of messages that are pulled in advance, while the previous batch is processed."""

QUICK_SHARE = 0.25
"""If processing a batch took longer than this fraction of the ack deadline, no messages are pulled in advance during
the next batch. The leases of such messages might end before the messages are processed."""

PULL_WAIT = timedelta(seconds=2)
"""Maximum time that a pull waits for its first message. If there are messages, the service answers in 20 to 60 ms."""

ACKNOWLEDGED_AT_ONCE = 8
"""Number of threads that acknowledge in parallel. A call takes a few milliseconds, mostly waiting."""

REQUEST = AcknowledgeRequest.pb()
"""The plain protobuf class, because the client's wrapper converts each ack id in Python."""

CONSUME = "pubsub.subscriptions.consume (roles/pubsub.subscriber) on it"


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Leased messages, and their ack ids in the same order."""

    messages: Messages
    ack_ids: Sequence[str]
    size_bytes: int

    def __len__(self) -> int:
        return len(self.messages)


class PubSubSubscription:
    """A subscription of Pub/Sub or of an emulator. The pipeline pulls and acknowledges messages only with this class.

    - `idle` is the longest time between two pulls. If it is long compared with the ack deadline, messages that arrive
      between two pulls are given back, because their leases would not last.
    - `on_call` is called, from any thread, for each pull that is sent.
    - `lease` is the ack deadline. By default, the constructor looks it up.

    Messages of pulls in flight at the end of a batch join the next batch, unless they are given back. So the caller
    must reuse the instance, or close it. With `pubsub.attach`, creating an instance for base raises
    BaseReadByOthers, so that no code can pull from base or acknowledge its messages."""

    def __init__(
        self,
        client: SubscriberClient,
        path: str,
        clock: Clock,
        settings: ServerSettings,
        idle: timedelta = ZERO,
        on_call: Callable[[], object] = lambda: None,
        *,
        lease: timedelta | None = None,
        pull_wait: timedelta = PULL_WAIT,
    ) -> None:
        if path == settings.read_by_others:
            raise BaseReadByOthers(
                f"{path} is read by another application (pubsub.attach = true): tidemark never pulls from it. See "
                "docs/how-to/attach.md"
            )
        self._client = client
        self.path = path
        self._clock = clock
        lease = lease or lease_of(client, path)
        self._wait_seconds = pull_wait.total_seconds()
        self._lease_seconds = lease.total_seconds()
        keeps = idle.total_seconds() <= self._lease_seconds * KEPT_SHARE
        self._pulls = Pulls(client, path, clock, settings, lease=lease, keeps=keeps, on_call=on_call)
        extend = partial(
            client.modify_ack_deadline, subscription=path, ack_deadline_seconds=int(self._lease_seconds), **ONE_TRY
        )
        # The function must not refer to this object, whose deletion ends the thread that extends the leases.
        self._leases = leases = Leases(path, self._lease_seconds, lambda ack_ids: extend(ack_ids=list(ack_ids)))
        self._given_at = clock.monotonic()
        finalize(self, leases.close)
        finalize(self, self._pulls.close)

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        """Pull a batch of messages, until one of the limits is reached or a pull returns no message. An empty batch
        does not prove that the backlog is empty. The leases of the batch are extended until it is acknowledged or given
        back. While the batch is processed, up to `ahead` further messages may be pulled.

        Pulling ends after a third of the ack deadline, so that the first lease does not end during it. After an error,
        returns the messages that were pulled before; if there are none, raises PubSubUnreachable, SubscriptionMissing,
        PermissionMissing or another PubSubError.
        """
        began = self._clock.monotonic()
        until = began + min(seconds, self._lease_seconds / 3)
        is_quick = began - self._given_at < self._lease_seconds * QUICK_SHARE
        found: list[pa.Table] = [NOTHING]
        messages = size = 0
        while messages < max_messages and size < max_bytes and (left := until - self._clock.monotonic()) > 0:
            try:
                with reported("pull from", self.path, CONSUME):
                    taken, taken_bytes = self._pulls.take(max_messages - messages, min(self._wait_seconds, left))
            except PubSubError as error:
                if not messages:
                    self._pulls.pause()
                    raise
                logger.warning("a batch ended early; the next one continues. Reason: %s", error)
                ahead = 0
                break
            if not len(taken):
                ahead = 0
                break
            size += taken_bytes
            messages += len(taken)
            found.append(taken)
        self._pulls.pause()
        batch = pa.concat_tables(found)
        ack_ids = batch[ACK_ID].to_pylist()
        self._leases.hold(ack_ids)
        if is_quick:
            self._pulls.go_ahead(min(ahead, AHEAD_MESSAGES))
        self._given_at = self._clock.monotonic()
        return PulledBatch(Messages(batch.drop_columns(ACK_ID)), ack_ids, size)

    def pause(self) -> None:
        """Stop pulling. Messages of pulls in flight join the next batch or, if `idle` is long, are given back."""
        self._pulls.pause()

    def close(self) -> None:
        """Give back the messages that were pulled in advance, and stop extending leases. A later `pull` is allowed."""
        self._pulls.close()
        self._leases.close()

    def hold(self, ack_ids: Sequence[str]) -> None:
        """Keep extending the leases of messages that another process has pulled."""
        self._leases.hold(ack_ids)

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        """Give messages back to Pub/Sub, which redelivers them after `seconds`. Does not wait for the answer."""
        self._leases.let_go(ack_ids)
        self._pulls.lease(ack_ids, seconds)

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        """Acknowledge messages in several requests, some of them in parallel, and stop extending the leases of these
        messages. If a request fails, the result has its error, and the other requests continue.

        Raises SubscriptionMissing, PermissionMissing and other PubSubErrors that a retry does not fix.
        """
        chunks = [list(ack_ids[start : start + IDS_PER_CALL]) for start in range(0, len(ack_ids), IDS_PER_CALL)]
        if len(chunks) <= 1:  # as in most ticks: no thread is needed
            return sum(map(self._acknowledge, chunks), Acknowledged())
        with ThreadPoolExecutor(ACKNOWLEDGED_AT_ONCE, thread_name_prefix="acknowledge") as pool:
            return sum(pool.map(self._acknowledge, chunks), Acknowledged())

    def _acknowledge(self, ack_ids: list[str]) -> Acknowledged:
        with reported("acknowledge on", self.path, CONSUME):
            try:
                self._client.acknowledge(request=REQUEST(subscription=self.path, ack_ids=ack_ids), **bounded())
            except (*TRANSIENT, api.RetryError, api.InvalidArgument, api.FailedPrecondition) as error:
                text = "%s: acknowledgements failed (%d), and the messages are redelivered: %s"
                logger.warning(text, self.path, len(ack_ids), error)
                return Acknowledged(failed=len(ack_ids), problems=(str(error),))
            finally:
                self._leases.let_go(ack_ids)
        return Acknowledged(count=len(ack_ids))


@lru_cache(maxsize=8)
def lease_of(client: SubscriberClient, path: str) -> timedelta:
    """Return the ack deadline of a subscription. It may differ from LEASE if another program created the subscription.
    Returns LEASE if the credentials do not permit a lookup. A process looks the deadline up once.

    Raises SubscriptionMissing or PubSubUnreachable.
    """
    try:
        with reported("read the ack deadline of", path, "pubsub.subscriptions.get on it"):
            return timedelta(seconds=client.get_subscription(subscription=path, **bounded()).ack_deadline_seconds)
    except PermissionMissing:
        return LEASE
