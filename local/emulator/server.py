"""Serves a PubSubModel over gRPC, on loopback."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import isgeneratorfunction
from typing import Any

import grpc
from google.pubsub_v1 import types

from tidemark.local.emulator import api, refusals
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.errors import ServiceFailed

logger = logging.getLogger(__name__)

CALLS_AT_ONCE = api.PULLS_WAIT_AT_MOST + 64
"""Number of threads: one per waiting pull, and some for other calls."""

REQUEST_BYTES = 20_000_000
"""Maximum size of a request for gRPC. It is twice Google's maximum for publishing, so that the model, not gRPC, refuses
a request that is too large."""

REQUESTS = {"CreateTopic": types.Topic, "CreateSubscription": types.Subscription}
"""The types of requests that are not called `<Method>Request`."""


@contextmanager
def served(
    model: PubSubModel | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    clock: Clock | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] = (),
) -> Iterator[str]:
    """Serve the model during the block, and yield `host:port`. With port 0, a free port is chosen.

    `host` must be loopback, because there is no authentication. During the block, the server's threads use the
    model, so the caller may only replace its `faults`. Raises ServiceFailed if the port cannot be used.
    """
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host  # IPv6
    shared = api.Shared(model or PubSubModel(rng=random.Random()), clock or SystemClock())  # noqa: S311 no secret
    pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="pubsub")
    options = (
        ("grpc.so_reuseport", 0),  # otherwise a second server could bind the same port and get half of the calls
        ("grpc.max_receive_message_length", REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
    )
    server = grpc.server(pool, handlers=handlers(shared), interceptors=interceptors, options=options)
    try:
        bound = server.add_insecure_port(f"{name}:{port}")
    except RuntimeError as error:
        raise ServiceFailed(
            f"cannot listen at {name}:{port}: {error}; stop the process that uses the port, or choose another port"
        ) from error
    server.start()
    try:
        yield f"{name}:{bound}"
    finally:
        shared.close()
        server.stop(grace=None).wait()
        pool.shutdown()


def handlers(shared: api.Shared) -> list[Any]:
    """Return the gRPC handlers of all services. Requests and answers are plain protobufs."""
    services = {
        "google.pubsub.v1.Publisher": api.PublisherService(shared),
        "google.pubsub.v1.Subscriber": api.SubscriberService(shared),
        "google.pubsub.v1.SchemaService": api.SchemaService(shared),
    }
    found = []
    for name, service in services.items():
        served = {}
        for attribute, function in vars(type(service)).items():
            if not attribute.startswith("_"):
                method, bound = attribute.title().replace("_", ""), getattr(service, attribute)
                is_stream = isgeneratorfunction(function)
                served[method] = _streaming(method, bound) if is_stream else _unary(method, bound, shared)
        found.append(grpc.method_handlers_generic_handler(name, served))
    return found


def _unary(name: str, method: Callable[[Any, Any], Any], shared: api.Shared) -> Any:
    request = REQUESTS.get(name) or getattr(types, f"{name}Request")

    def call(given: Any, context: Any) -> Any:
        try:
            with shared.changed:
                delay = shared.model.delay()
            if delay:
                shared.clock.sleep(delay.total_seconds())
            with shared.changed:
                return method(given, context)
        except refusals.ModelError as error:
            return context.abort(grpc.StatusCode[error.status], str(error))

    def serialized(answer: Any) -> bytes:
        if not answer:  # an answer without fields
            return b""
        if isinstance(answer, dict):
            answer = getattr(types, f"{name}Response").pb()(**answer)
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(call, request.pb().FromString, serialized)


def _streaming(name: str, method: Callable[[Any, Any], Iterator[bytes]]) -> Any:
    def stream(requests: Iterator[Any], context: Any) -> Iterator[bytes]:
        try:
            yield from method(requests, context)
        except refusals.ModelError as error:
            context.abort(grpc.StatusCode[error.status], str(error))

    request = getattr(types, f"{name}Request").pb().FromString
    return grpc.stream_stream_rpc_method_handler(stream, request, None)
