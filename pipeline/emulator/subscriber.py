"""google.pubsub.v1.Subscriber, as far as tidemark uses it, over the model."""

from datetime import datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1 import types

from pipeline.clock import to_us
from pipeline.emulator import limits
from pipeline.emulator.model import DELETED_TOPIC, Delivered, Snapshot, Subscription
from pipeline.emulator.refusals import Invalid, Unavailable
from pipeline.emulator.shared import Shared, merged, page, warn_of_ignored
from pipeline.emulator.wire import pull_response

MESSAGES_PER_PULL = 1000
BYTES_PER_PULL = 10_000_000
"""The message that reaches it is an answer's last."""

LONGEST_WAIT_SECONDS = 90.0
"""How long a pull waits for messages, where its deadline is later or it has none."""

PULLS_WAIT_AT_MOST = 192
"""While so many pulls wait, another one answers at once, with nothing if there is nothing: as each occupies a thread,
nobody else would be answered."""

BEFORE_THE_DEADLINE_SECONDS = 0.1
"""So long before its caller's deadline a pull answers, with nothing: an answer that comes too late is one whose
messages are leased and lost until their lease ends."""

EXPIRES_UNUSED_AFTER = Duration(seconds=31 * 86400)
"""What the service says of a subscription that says nothing. Here nothing is ever deleted."""

IGNORED = frozenset(
    {
        "bigquery_config",
        "bigtable_config",
        "cloud_storage_config",
        "dead_letter_policy",
        "enable_exactly_once_delivery",
        "enable_message_ordering",
        "filter",
        "message_transforms",
        "push_config",
        "retry_policy",
    }
)
"""Settings of a subscription that are kept and given back, and have no effect."""

CHANGEABLE = IGNORED - {"enable_message_ordering", "filter"} | {
    "ack_deadline_seconds",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "retain_acked_messages",
}

PlainSnapshot = types.Snapshot.pb()
ListSubscriptionsResponse = types.ListSubscriptionsResponse.pb()
ListSnapshotsResponse = types.ListSnapshotsResponse.pb()
SeekResponse = types.SeekResponse.pb()


class SubscriberService:
    """Each method is one of the API's, from its plain protobuf request to its answer. Raises ModelErrors."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._model = shared.model
        self._waiting = 0

    # Subscriptions

    def create_subscription(self, config: Any, _: Any) -> Any:
        limits.resource("subscriptions", config.name)
        limits.resource("topics", config.topic)
        told = _told(config)
        warn_of_ignored(config, IGNORED)
        with self._shared.changed:
            self._model.create_subscription(
                told.name,
                told.topic,
                ack_deadline=told.ack_deadline,
                retention=told.retention,
                retain_acked_messages=told.retain_acked_messages,
                config=config,
                at=self._shared.now(),
            )
        return config

    def get_subscription(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        with self._shared.changed:
            return _config(self._model.get_subscription(request.subscription))

    def update_subscription(self, request: Any, _: Any) -> Any:
        name = limits.resource("subscriptions", request.subscription.name)
        with self._shared.changed:
            old = _config(self._model.get_subscription(name))
            config = merged(old, request.subscription, request.update_mask, CHANGEABLE)
            self._model.update_subscription(_told(config))
        return config

    def list_subscriptions(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        with self._shared.changed:
            found = [_config(told) for told in self._model.list_subscriptions() if told.name.startswith(prefix)]
        found, token = page(found, request)
        return ListSubscriptionsResponse(subscriptions=found, next_page_token=token)

    def delete_subscription(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        with self._shared.changed:
            self._model.delete_subscription(request.subscription)
            self._shared.changed.notify_all()
        return Empty()

    # Messages

    def pull(self, request: Any, context: Any) -> bytes:
        """Wait until there is something or the caller's deadline is near."""
        limits.resource("subscriptions", request.subscription)
        if request.max_messages < 1:
            raise Invalid(f"max_messages = {request.max_messages}: it is at least 1")
        with self._shared.changed:
            delivered = self._look(request, context)
            if not delivered and not request.return_immediately and self._waiting < PULLS_WAIT_AT_MOST:
                self._waiting += 1
                try:
                    delivered = self._wait(request, context)
                finally:
                    self._waiting -= 1
        return pull_response(delivered)

    def _look(self, request: Any, context: Any, *, goes_on: bool = False) -> list[Delivered]:
        if self._shared.closed or not context.is_active():
            raise Unavailable("nobody waits for this pull any more")
        at_most = min(request.max_messages, MESSAGES_PER_PULL)
        now = self._shared.now()
        return self._model.pull(request.subscription, at_most, now, max_bytes=BYTES_PER_PULL, goes_on=goes_on)

    def _wait(self, request: Any, context: Any) -> list[Delivered]:
        clock = self._shared.clock
        until = clock.monotonic() + _patience_seconds(context)
        context.add_callback(self._wake)
        delivered: list[Delivered] = []
        while not delivered and (left := until - clock.monotonic()) > 0:
            due = self._model.next_change(request.subscription)
            if due is not None:
                left = min(left, max(0.001, (due - self._shared.now()).total_seconds()))
            self._shared.changed.wait(left)
            delivered = self._look(request, context, goes_on=True)
        return delivered

    def acknowledge(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        limits.ack_ids(request.ack_ids)
        with self._shared.changed:
            self._model.acknowledge(request.subscription, request.ack_ids, self._shared.now())
        return Empty()

    def modify_ack_deadline(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        limits.ack_ids(request.ack_ids)
        seconds = limits.extension(request.ack_deadline_seconds)
        with self._shared.changed:
            self._model.modify_ack_deadline(request.subscription, request.ack_ids, seconds, self._shared.now())
            self._shared.changed.notify_all()
        return Empty()

    # Snapshots

    def create_snapshot(self, request: Any, _: Any) -> Any:
        limits.resource("snapshots", request.name)
        limits.resource("subscriptions", request.subscription)
        config = PlainSnapshot(name=request.name, labels=request.labels)
        with self._shared.changed:
            return _snapshot(
                self._model.create_snapshot(request.name, request.subscription, self._shared.now(), config)
            )

    def get_snapshot(self, request: Any, _: Any) -> Any:
        limits.resource("snapshots", request.snapshot)
        with self._shared.changed:
            return _snapshot(self._model.get_snapshot(request.snapshot, self._shared.now()))

    def list_snapshots(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        with self._shared.changed:
            found = [one for one in self._model.list_snapshots(self._shared.now()) if one.name.startswith(prefix)]
        found, token = page(found, request)
        return ListSnapshotsResponse(snapshots=map(_snapshot, found), next_page_token=token)

    def update_snapshot(self, request: Any, _: Any) -> Any:
        name = limits.resource("snapshots", request.snapshot.name)
        with self._shared.changed:
            now = self._shared.now()
            old = self._model.get_snapshot(name, now)
            config = merged(_snapshot(old), request.snapshot, request.update_mask, frozenset({"labels", "expire_time"}))
            changed = Snapshot(name, old.topic, limits.moment("expire_time", config.expire_time), config)
            self._model.update_snapshot(changed, now)
        return config

    def delete_snapshot(self, request: Any, _: Any) -> Any:
        limits.resource("snapshots", request.snapshot)
        with self._shared.changed:
            self._model.delete_snapshot(request.snapshot, self._shared.now())
        return Empty()

    def seek(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        with self._shared.changed:
            now = self._shared.now()
            to: datetime | Snapshot
            if request.WhichOneof("target") == "snapshot":
                to = self._model.get_snapshot(limits.resource("snapshots", request.snapshot), now)
            elif request.WhichOneof("target") == "time":
                to = limits.moment("time", request.time)
            else:
                raise Invalid("a seek is to a time or to a snapshot")
            self._model.seek(request.subscription, to, now)
            self._shared.changed.notify_all()
        return SeekResponse()

    def _wake(self) -> None:
        """A caller has gone: let its pull see that."""
        with self._shared.changed:
            self._shared.changed.notify_all()


def _patience_seconds(context: Any) -> float:
    left: float = context.time_remaining()  # centuries, where there is no deadline
    return min(LONGEST_WAIT_SECONDS, max(0.0, left - min(BEFORE_THE_DEADLINE_SECONDS, left / 5)))


def _told(config: Any) -> Subscription:
    """What the model needs of a subscription's config, into which the defaults are written."""
    deadline, retention = limits.ack_deadline(config.ack_deadline_seconds), limits.retention(config)
    config.ack_deadline_seconds = int(deadline.total_seconds())
    config.message_retention_duration.FromTimedelta(retention)
    if not config.HasField("expiration_policy"):
        config.expiration_policy.ttl.CopyFrom(EXPIRES_UNUSED_AFTER)
    return Subscription(config.name, config.topic, deadline, retention, config.retain_acked_messages, config)


def _config(told: Subscription) -> Any:
    if told.topic == DELETED_TOPIC:
        told.config.topic = DELETED_TOPIC
    return told.config


def _snapshot(snapshot: Snapshot) -> Any:
    config = snapshot.config
    config.topic = snapshot.topic
    config.expire_time.CopyFrom(_timestamp(snapshot.expire_time))
    return config


def _timestamp(moment: datetime) -> Timestamp:
    microseconds = to_us(moment)
    return Timestamp(seconds=microseconds // 1_000_000, nanos=microseconds % 1_000_000 * 1000)
