"""The methods of google.pubsub.v1.Subscriber that tidemark uses."""

from datetime import datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from pipeline.emulator import limits
from pipeline.emulator.refusals import Invalid, Unavailable
from pipeline.emulator.shared import Service, Shared, merged, page, warn_of_ignored
from pipeline.emulator.unacknowledged import Delivered
from pipeline.emulator.wire import pull_response

MESSAGES_PER_PULL = 1000
BYTES_PER_PULL = 10_000_000
"""The message that reaches this size is the last of its answer."""

LONGEST_WAIT_SECONDS = 90.0
"""The longest that a pull waits for messages, whatever its deadline."""

PULLS_WAIT_AT_MOST = 192
"""The most pulls that wait at a time; further ones answer at once. Each waiting pull occupies a thread, and some must
be left for other calls."""

BEFORE_THE_DEADLINE_SECONDS = 0.1
"""A waiting pull gives up this long before its caller's deadline. The messages of an answer that came too late would be
leased to nobody."""

EXPIRES_UNUSED_AFTER = Duration(seconds=31 * 86400)
"""The expiration policy that the service gives a subscription without one. Here no subscription expires."""

IGNORED = frozenset(
    {
        *("bigquery_config", "bigtable_config", "cloud_storage_config", "push_config"),
        *("dead_letter_policy", "retry_policy", "filter", "message_transforms"),
        *("enable_exactly_once_delivery", "enable_message_ordering"),
    }
)
"""Settings of a subscription that are stored and returned but have no effect."""

CHANGEABLE = IGNORED - {"enable_message_ordering", "filter"} | {
    *("ack_deadline_seconds", "expiration_policy", "labels"),
    *("message_retention_duration", "retain_acked_messages"),
}

ListSubscriptionsResponse = types.ListSubscriptionsResponse.pb()
ListSnapshotsResponse = types.ListSnapshotsResponse.pb()
SeekResponse = types.SeekResponse.pb()


class SubscriberService(Service):
    """Subscriptions, pulling from them, and snapshots."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._waiting = 0

    # Subscriptions

    def create_subscription(self, config: Any, _: Any) -> Any:
        limits.resource("subscriptions", config.name)
        limits.resource("topics", config.topic)
        _fill_in(config)
        warn_of_ignored(config, IGNORED)
        self._model.create_subscription(config, self._shared.now())
        return config

    def get_subscription(self, request: Any, _: Any) -> Any:
        return self._model.get_subscription(limits.resource("subscriptions", request.subscription))

    def update_subscription(self, request: Any, _: Any) -> Any:
        name = limits.resource("subscriptions", request.subscription.name)
        old = self._model.get_subscription(name)
        config = merged(old, request.subscription, request.update_mask, CHANGEABLE)
        _fill_in(config)
        self._model.update_subscription(config)
        return config

    def list_subscriptions(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        found = [one for one in self._model.list_subscriptions() if one.name.startswith(prefix)]
        return page(ListSubscriptionsResponse, "subscriptions", found, request)

    def delete_subscription(self, request: Any, _: Any) -> Any:
        self._model.delete_subscription(limits.resource("subscriptions", request.subscription))
        self._shared.changed.notify_all()
        return Empty()

    # Messages

    def pull(self, request: Any, context: Any) -> bytes:
        """Wait until there is something or the caller's deadline is near."""
        limits.resource("subscriptions", request.subscription)
        if request.max_messages < 1:
            raise Invalid(f"max_messages = {request.max_messages}: it is at least 1")
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
        self._model.acknowledge(request.subscription, request.ack_ids, self._shared.now())
        return Empty()

    def modify_ack_deadline(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        limits.ack_ids(request.ack_ids)
        seconds = limits.extension(request.ack_deadline_seconds)
        self._model.modify_ack_deadline(request.subscription, request.ack_ids, seconds, self._shared.now())
        self._shared.changed.notify_all()
        return Empty()

    # Snapshots

    def create_snapshot(self, request: Any, _: Any) -> Any:
        limits.resource("snapshots", request.name)
        limits.resource("subscriptions", request.subscription)
        return self._model.create_snapshot(request.name, request.subscription, self._shared.now(), request.labels)

    def get_snapshot(self, request: Any, _: Any) -> Any:
        return self._model.get_snapshot(limits.resource("snapshots", request.snapshot), self._shared.now())

    def list_snapshots(self, request: Any, _: Any) -> Any:
        prefix = limits.project(request.project)
        found = [one for one in self._model.list_snapshots(self._shared.now()) if one.name.startswith(prefix)]
        return page(ListSnapshotsResponse, "snapshots", found, request)

    def update_snapshot(self, request: Any, _: Any) -> Any:
        name, now = limits.resource("snapshots", request.snapshot.name), self._shared.now()
        old = self._model.get_snapshot(name, now)
        changed = merged(old, request.snapshot, request.update_mask, frozenset({"labels", "expire_time"}))
        limits.moment("expire_time", changed.expire_time)
        self._model.update_snapshot(changed, now)
        return changed

    def delete_snapshot(self, request: Any, _: Any) -> Any:
        self._model.delete_snapshot(limits.resource("snapshots", request.snapshot), self._shared.now())
        return Empty()

    def seek(self, request: Any, _: Any) -> Any:
        limits.resource("subscriptions", request.subscription)
        to: datetime | str
        if request.WhichOneof("target") == "snapshot":
            to = limits.resource("snapshots", request.snapshot)
        elif request.WhichOneof("target") == "time":
            to = limits.moment("time", request.time)
        else:
            raise Invalid("a seek is to a time or to a snapshot")
        self._model.seek(request.subscription, to, self._shared.now())
        self._shared.changed.notify_all()
        return SeekResponse()

    def _wake(self) -> None:
        """Let a pull see that its caller has gone. Called by gRPC, without the lock."""
        with self._shared.changed:
            self._shared.changed.notify_all()


def _patience_seconds(context: Any) -> float:
    left: float = context.time_remaining()  # centuries, where there is no deadline
    return min(LONGEST_WAIT_SECONDS, max(0.0, left - min(BEFORE_THE_DEADLINE_SECONDS, left / 5)))


def _fill_in(config: Any) -> None:
    """Check a subscription's durations, and write the defaults into its config."""
    config.ack_deadline_seconds = int(limits.ack_deadline(config.ack_deadline_seconds).total_seconds())
    config.message_retention_duration.FromTimedelta(limits.retention(config))
    if not config.HasField("expiration_policy"):
        config.expiration_policy.ttl.CopyFrom(EXPIRES_UNUSED_AFTER)
