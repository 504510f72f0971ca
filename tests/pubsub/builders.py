"""Hand-written stand-ins and short ways to what the tests of Pub/Sub need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.fixtures_emulator import QUICK_LEASE
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.pubsub.provision import ProvisionReport, provision
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, PulledBatch
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings


class Altered:
    """A client whose named methods are replaced, and whose other ones are the real client's."""

    def __init__(self, client: SubscriberClient | PublisherClient, **methods: Callable[..., Any]) -> None:
        self._client = client
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._client, name)


def ids_of(batch: PulledBatch) -> list[str]:
    """The ids of its messages, in order."""
    return batch.messages.table["message_id"].to_pylist()


def raising(error: BaseException) -> Callable[..., Any]:
    """A method that only ever raises."""

    def method(*_: Any, **__: Any) -> Any:
        raise error

    return method


def subscription_of(
    subscriber: Any, settings: PubSubSettings, path: str | None = None, clock: Clock | None = None, **bounds: Any
) -> PubSubSubscription:
    """The base subscription, or another one. An empty pull waits for a second."""
    path, clock = path or settings.base_path, clock or SystemClock()
    return PubSubSubscription(subscriber, path, clock, settings, **{"lease": QUICK_LEASE, "pull_wait": SOON, **bounds})


@dataclass(frozen=True)
class Served:
    """Clients of a server, and settings with names that nobody else uses there."""

    subscriber: SubscriberClient
    publisher: PublisherClient
    settings: PubSubSettings

    def provision(self, **others: Any) -> ProvisionReport:
        """Provision the topic and both subscriptions, with the parts that are named otherwise."""
        parts = {"subscriber": self.subscriber, "publisher": self.publisher, "settings": self.settings}
        return provision(**{**parts, "contract": Settings().contract, "clock": SystemClock(), **others})

    def subscription(self, path: str | None = None, clock: Clock | None = None, **bounds: Any) -> PubSubSubscription:
        return subscription_of(self.subscriber, self.settings, path, clock, **bounds)

    def send(self, count: int, size: int = 1) -> list[str]:
        """Publish at most a thousand messages of `size` bytes; their ids."""
        messages = [{"data": b"x" * size, "attributes": {"number": str(number)}} for number in range(count)]
        return list(self.publisher.publish(topic=self.settings.topic_path, messages=messages).message_ids)


SOON = timedelta(seconds=1)


LIST = "ListSchemaRevisions"


@dataclass
class Denying(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses these methods as the service does without the permission; the revisions of schemas that end so alone."""

    methods: set[str] = field(default_factory=set)
    schemas: tuple[str, ...] = ()
    after: bool = False
    """The call has taken effect, and its answer is lost."""
    refused: int = 0

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler, name = continuation(details), details.method.rpartition("/")[2]

        def answer(request: Any, context: Any) -> Any:
            is_refused = name == LIST and request.name.endswith(self.schemas or ("/*",))
            if is_refused or name in self.methods:
                self.refused += 1
                if self.after:
                    handler.unary_unary(request, context)
                    context.abort(grpc.StatusCode.UNKNOWN, "the answer was lost")
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "the caller does not have permission")
            return handler.unary_unary(request, context)

        if handler is None or name not in (LIST, "GetTopic", *self.methods):
            return handler
        return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)
