"""The gRPC methods of `google.pubsub.v1` that tidemark uses. They call a PubSubModel, one method at a time."""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain
from threading import Condition, Thread
from typing import Any

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1 import types

from tidemark.local.emulator import limits
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import Invalid, ModelError, Throttled, Unavailable
from tidemark.local.emulator.unacknowledged import Delivered
from tidemark.local.emulator.wire import pull_response
from tidemark.pipeline.clock import Clock

logger = logging.getLogger(__name__)

MESSAGES_PER_PULL = 1000
BYTES_PER_PULL = 10_000_000
"""An answer ends with the message that brings its size to this number of bytes."""

LONGEST_WAIT_SECONDS = 90.0
"""Maximum time that a pull waits for messages."""

STREAM_SILENCE_SECONDS = 5.0
"""Interval at which a streaming pull without messages sends an empty answer. The Java client closes a stream that is
silent for 15 s after its request."""

PULLS_WAIT_AT_MOST = 192
"""Maximum number of pulls that wait for messages. Each one occupies a thread, and other calls need threads too. Further
pulls are answered immediately, and further streams are refused."""

BEFORE_THE_DEADLINE_SECONDS = 0.1
"""A waiting pull ends this long before its caller's deadline. After the deadline, it would lease messages to a caller
that has gone."""

AFTER_THE_DEADLINE_SECONDS = 1.0
"""With the fault `answers_the_gone`, a pull goes on waiting for this long after its caller's deadline. Messages that it
gets in this time are leased to a caller that has gone."""

IGNORED_OF_A_TOPIC = frozenset({"message_retention_duration", "message_transforms", "ingestion_data_source_settings"})
"""Settings of a topic that are stored and returned, but have no effect."""

IGNORED = frozenset(
    {
        "bigquery_config",
        "bigtable_config",
        "cloud_storage_config",
        "dead_letter_policy",
        "enable_exactly_once_delivery",
        "enable_message_ordering",
        "message_transforms",
        "push_config",
        "retry_policy",
    }
)
"""Settings of a subscription that are stored and returned, but have no effect."""

CHANGEABLE = IGNORED - {"enable_message_ordering"} | {
    "ack_deadline_seconds",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "retain_acked_messages",
}


class Shared:
    """The model and the condition `changed`, which all services share. Each call holds the condition's lock. A pull
    without messages waits until the condition is notified."""

    def __init__(self, model: PubSubModel, clock: Clock) -> None:
        self.model = model
        self.clock = clock
        self.changed = Condition()
        self.closed = False
        self.waiting = 0  # number of pulls
        self._latest = clock.now()

    def now(self) -> datetime:
        """Return the model's time, which never goes back. The caller must hold the lock."""
        self._latest = max(self._latest, self.clock.now())
        return self._latest

    def wake(self) -> None:
        """Wake the waiting pulls. The caller must not hold the lock."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """End all waiting pulls."""
        self.closed = True
        self.wake()


class Service:
    """The base class of the gRPC services. Each public method is a gRPC method. It takes a plain protobuf request and
    the call's context, and returns the answer as a protobuf, a dict of its fields, or bytes; None if the answer has no
    fields. The caller must hold the lock. Raises ModelError."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._model = shared.model


class PublisherService(Service):
    """The gRPC methods for topics, and for publishing to topics."""

    def create_topic(self, topic: Any, _: Any) -> Any:
        limits.resource("topics", topic.name)
        warn_of_ignored(topic, IGNORED_OF_A_TOPIC)
        self._model.create_topic(topic)
        return topic

    def get_topic(self, request: Any, _: Any) -> Any:
        return self._model.get_topic(limits.resource("topics", request.topic))

    def list_topics(self, request: Any, _: Any) -> Any:
        return listed("topics", self._model.list_topics(), request)

    def delete_topic(self, request: Any, _: Any) -> None:
        self._model.delete_topic(limits.resource("topics", request.topic))

    def list_topic_subscriptions(self, request: Any, _: Any) -> Any:
        topic = limits.resource("topics", request.topic)
        return page("subscriptions", [one.name for one in self._model.list_subscriptions(topic)], request)

    def list_topic_snapshots(self, request: Any, _: Any) -> Any:
        topic = limits.resource("topics", request.topic)
        names = [one.name for one in self._model.list_snapshots(self._shared.now()) if one.topic == topic]
        return page("snapshots", names, request)

    def publish(self, request: Any, _: Any) -> Any:
        limits.resource("topics", request.topic)
        limits.publishable(request)
        try:
            return {"message_ids": self._model.publish(request.topic, list(request.messages), self._shared.now())}
        finally:  # even if the answer is lost
            self._shared.changed.notify_all()


class SubscriberService(Service):
    """The gRPC methods for subscriptions, pulls and snapshots."""

    # Subscriptions

    def create_subscription(self, config: Any, _: Any) -> Any:
        limits.resource("subscriptions", config.name)
        limits.resource("topics", config.topic)
        limits.durations(config)
        warn_of_ignored(config, IGNORED)
        self._model.create_subscription(config, self._shared.now())
        return config

    def get_subscription(self, request: Any, _: Any) -> Any:
        return self._model.get_subscription(limits.resource("subscriptions", request.subscription))

    def update_subscription(self, request: Any, _: Any) -> Any:
        name = limits.resource("subscriptions", request.subscription.name)
        old = self._model.get_subscription(name)
        config = merged(old, request.subscription, request.update_mask, CHANGEABLE)
        limits.durations(config)
        self._model.update_subscription(config)
        return config

    def list_subscriptions(self, request: Any, _: Any) -> Any:
        return listed("subscriptions", self._model.list_subscriptions(), request)

    def delete_subscription(self, request: Any, _: Any) -> None:
        self._model.delete_subscription(limits.resource("subscriptions", request.subscription))
        self._shared.changed.notify_all()

    # Messages

    def pull(self, request: Any, context: Any) -> bytes:
        """Return messages. If there are none, wait for some, at most until shortly before the caller's deadline."""
        limits.resource("subscriptions", request.subscription)
        if request.max_messages < 1:
            raise Invalid(f"max_messages = {request.max_messages}: it must be at least 1")
        if self._model.answers_empty():
            return pull_response([])
        delivered = self._look(request, context)
        if not delivered and not request.return_immediately and self._shared.waiting < PULLS_WAIT_AT_MOST:
            self._shared.waiting += 1
            context.add_callback(self._shared.wake)  # the caller may hang up
            try:
                delivered = self._wait(request, context)
            finally:
                self._shared.waiting -= 1
        return pull_response(delivered)

    def streaming_pull(self, requests: Iterator[Any], context: Any) -> Iterator[bytes]:
        """Yield messages until the caller hangs up, and an empty answer after STREAM_SILENCE_SECONDS of silence.

        Unlike other methods, this method takes the lock itself. Each request may acknowledge messages and change
        leases. If the model refuses that, the stream ends with its error. Bounds on outstanding messages are ignored.
        """
        first = next(requests, None)
        if first is None:
            raise Invalid("the stream has ended before its first request")
        limits.resource("subscriptions", first.subscription)
        if not 10 <= (seconds := first.stream_ack_deadline_seconds) <= 600:
            raise Invalid(f"stream_ack_deadline_seconds = {seconds}: it must be 10 to 600")
        request = types.PullRequest.pb()(subscription=first.subscription, max_messages=MESSAGES_PER_PULL)
        with self._shared.changed:
            if self._shared.waiting >= PULLS_WAIT_AT_MOST:
                raise Throttled(f"{PULLS_WAIT_AT_MOST} pulls and streams are already waiting")
            self._shared.waiting += 1
        context.add_callback(self._shared.wake)
        refused: list[ModelError] = []
        Thread(target=self._follow, args=(chain([first], requests), first.subscription, refused), daemon=True).start()
        try:
            while True:
                with self._shared.changed:
                    if refused:
                        raise refused[0]
                    delivered = self._look(request, context)
                    delivered = delivered or self._wait(request, context, STREAM_SILENCE_SECONDS)
                yield pull_response(delivered)
        finally:
            with self._shared.changed:
                self._shared.waiting -= 1

    def _follow(self, requests: Iterable[Any], subscription: str, refused: list[ModelError]) -> None:
        """Apply the acknowledgements and lease changes in the requests of a stream, until the caller hangs up."""
        with suppress(grpc.RpcError):
            for request in requests:
                with self._shared.changed:
                    now, seconds = self._shared.now(), request.modify_deadline_seconds
                    try:
                        if request.ack_ids:
                            self._model.acknowledge(subscription, request.ack_ids, now)
                        for ack_id, of_lease in zip(request.modify_deadline_ack_ids, seconds, strict=False):
                            self._model.modify_ack_deadline(subscription, [ack_id], of_lease, now)
                    except ModelError as error:
                        refused.append(error)
                    self._shared.changed.notify_all()

    def _look(self, request: Any, context: Any, *, goes_on: bool = False) -> list[Delivered]:
        if self._shared.closed or not (context.is_active() or self._model.faults.answers_the_gone):
            raise Unavailable("the caller of this pull has gone, or the server is stopping")
        at_most = min(request.max_messages, MESSAGES_PER_PULL)
        now = self._shared.now()
        return self._model.pull(request.subscription, at_most, now, max_bytes=BYTES_PER_PULL, goes_on=goes_on)

    def _wait(self, request: Any, context: Any, at_most: float = LONGEST_WAIT_SECONDS) -> list[Delivered]:
        clock = self._shared.clock
        left: float = context.time_remaining()  # centuries, if there is no deadline
        patience = left - min(BEFORE_THE_DEADLINE_SECONDS, left / 5)
        if self._model.faults.answers_the_gone:
            patience = left + AFTER_THE_DEADLINE_SECONDS
        until = clock.monotonic() + min(patience, at_most)
        delivered: list[Delivered] = []
        while not delivered and (left := until - clock.monotonic()) > 0:
            due = self._model.next_change(request.subscription)
            if due is not None:
                left = min(left, max(0.001, (due - self._shared.now()).total_seconds()))
            self._shared.changed.wait(left)
            delivered = self._look(request, context, goes_on=True)
        return delivered

    def acknowledge(self, request: Any, _: Any) -> None:
        limits.resource("subscriptions", request.subscription)
        limits.ack_ids(request.ack_ids)
        self._model.acknowledge(request.subscription, request.ack_ids, self._shared.now())

    def modify_ack_deadline(self, request: Any, _: Any) -> None:
        limits.resource("subscriptions", request.subscription)
        limits.ack_ids(request.ack_ids)
        seconds = request.ack_deadline_seconds
        if not 0 <= seconds <= 600:
            raise Invalid(f"ack_deadline_seconds = {seconds}: it must be 0 to 600")
        self._model.modify_ack_deadline(request.subscription, request.ack_ids, seconds, self._shared.now())
        self._shared.changed.notify_all()

    # Snapshots

    def create_snapshot(self, request: Any, _: Any) -> Any:
        limits.resource("snapshots", request.name)
        limits.resource("subscriptions", request.subscription)
        return self._model.create_snapshot(request.name, request.subscription, self._shared.now(), request.labels)

    def get_snapshot(self, request: Any, _: Any) -> Any:
        return self._model.get_snapshot(limits.resource("snapshots", request.snapshot), self._shared.now())

    def update_snapshot(self, request: Any, _: Any) -> Any:
        name, now = limits.resource("snapshots", request.snapshot.name), self._shared.now()
        old = self._model.get_snapshot(name, now)
        changed = merged(old, request.snapshot, request.update_mask, frozenset({"labels", "expire_time"}))
        limits.moment("expire_time", changed.expire_time)
        self._model.update_snapshot(changed, now)
        return changed

    def list_snapshots(self, request: Any, _: Any) -> Any:
        return listed("snapshots", self._model.list_snapshots(self._shared.now()), request)

    def delete_snapshot(self, request: Any, _: Any) -> None:
        self._model.delete_snapshot(limits.resource("snapshots", request.snapshot), self._shared.now())

    def seek(self, request: Any, _: Any) -> None:
        limits.resource("subscriptions", request.subscription)
        to: datetime | str
        if request.WhichOneof("target") == "snapshot":
            to = limits.resource("snapshots", request.snapshot)
        elif request.WhichOneof("target") == "time":
            to = limits.moment("time", request.time)
        else:
            raise Invalid("a seek must name a time or a snapshot")
        self._model.seek(request.subscription, to, self._shared.now())
        self._shared.changed.notify_all()


class SchemaService(Service):
    """The gRPC methods for schemas and their revisions. Messages are not validated against a schema."""

    def create_schema(self, request: Any, _: Any) -> Any:
        name = limits.resource("schemas", f"{limits.project(request.parent)}schemas/{request.schema_id}")
        return self._model.schemas.create(name, request.schema, self._shared.now())

    def get_schema(self, request: Any, _: Any) -> Any:
        limits.resource("schemas", request.name.partition("@")[0])
        return self._model.schemas.get(request.name)

    def commit_schema(self, request: Any, _: Any) -> Any:
        return self._model.schemas.commit(limits.resource("schemas", request.name), request.schema, self._shared.now())

    def list_schema_revisions(self, request: Any, _: Any) -> Any:
        newest_first = self._model.schemas.of(limits.resource("schemas", request.name))[::-1]
        return page("schemas", newest_first, request)


def listed(field: str, resources: list[Any], request: Any) -> dict[str, Any]:
    """Return one page of a project's resources, as the fields of the answer."""
    prefix = limits.project(request.project)
    return page(field, [one for one in resources if one.name.startswith(prefix)], request)


def page(field: str, found: list[Any], request: Any) -> dict[str, Any]:
    """Return one page of a list, as the fields of the answer. A page size below 1 stands for the rest of the list."""
    if not re.fullmatch("[0-9]{0,9}", request.page_token):
        raise Invalid(f"page_token = {request.page_token!r} was not issued here")
    start = int(request.page_token or 0)
    end = start + request.page_size if request.page_size > 0 else len(found)
    return {field: found[start:end], "next_page_token": str(end) if end < len(found) else ""}


def merged(old: Any, new: Any, mask: FieldMask, allowed: frozenset[str]) -> Any:
    """Return a copy of `old` with the mask's fields taken from `new`. Raises Invalid if a field of the mask is not in
    `allowed`."""
    if not mask.paths:
        raise Invalid("update_mask names no field")
    for path in mask.paths:
        if path not in allowed:
            raise Invalid(f"update_mask: {path} cannot be changed")
    changed = type(old)()
    changed.CopyFrom(old)
    mask.MergeMessage(new, changed, replace_message_field=True, replace_repeated_field=True)
    return changed


def warn_of_ignored(config: Any, ignored: frozenset[str]) -> None:
    """Log a warning about settings that have no effect."""
    if named := sorted(field.name for field, _ in config.ListFields() if field.name in ignored):
        logger.warning("%s: %s has no effect here", config.name, ", ".join(named))
