"""Records calls: those to gRPC servers of the tests by an interceptor, those to Cloud Storage by a proxy in a process
of its own, because some callers keep Python's lock while they wait for an answer."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.gcs.apart import apart
from tests.gcs.server import CloudStorageServer
from tests.gcs.xml_proxy import Answer, XmlHandler, XmlProxy
from tests.identity.documented import permissions_of_http, permissions_of_rpc
from tidemark.pipeline.doctor.identity import Permission

OF_THE_TESTS = ("/storage/v1/b?", "/_internal/")
"""Making buckets, and asking whether the server is ready."""


@dataclass
class Recorder(grpc.ServerInterceptor):  # type: ignore[misc]
    """The gRPC methods that were called, in order, and the subscriptions that each was about."""

    methods: list[str] = field(default_factory=list)
    about: list[tuple[str, str]] = field(default_factory=list)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.methods.append(details.method)
        handler, name = continuation(details), details.method.rpartition("/")[2]
        if handler is None or handler.unary_unary is None:
            return handler

        def noting(request: Any, context: Any) -> Any:
            written = getattr(request, "subscription", None) or getattr(request, "name", "")
            self.about.append((name, written))
            return handler.unary_unary(request, context)

        return handler._replace(unary_unary=noting)

    def taken(self) -> set[Permission]:
        """What the calls since the last time needed. Raises Unlisted for one that the product does not know."""
        methods, self.methods[:] = self.methods[:], []
        return {one for method in set(methods) for one in permissions_of_rpc(method)}


@dataclass
class RecordedBuckets:
    """A Cloud Storage server, and the file that each request to it is written to."""

    endpoint: str
    calls: Path
    _read: int = 0

    def taken(self) -> set[Permission]:
        """What the requests since the last time needed. Raises Unlisted for one that the product does not know."""
        lines = self.calls.read_text().splitlines()
        new, self._read = set(lines[self._read :]), len(lines)
        found: set[Permission] = set()
        for line in new:
            method, path, precondition = line.split(" ")
            found |= set(permissions_of_http(method, path, precondition or None))
        return found


@contextmanager
def recorded_buckets(folder: Path) -> Iterator[RecordedBuckets]:
    """The server, until the block is left."""
    calls = folder / "calls"
    calls.touch()
    with apart("tests.identity.recording", str(calls)) as endpoint:
        yield RecordedBuckets(endpoint, calls)


class Recording(XmlHandler):
    """Writes each request down before it is answered."""

    calls: Path

    def answer(self, body: bytes) -> Answer:
        if not self.path.startswith(OF_THE_TESTS):
            with self.calls.open("a") as file:
                file.write(f"{self.command} {self.path} {self.headers.get('x-goog-if-generation-match', '')}\n")
        return super().answer(body)


if __name__ == "__main__":
    Recording.calls = Path(sys.argv[1])
    with CloudStorageServer() as server:
        proxy = XmlProxy(server.upstream_port, handler=Recording).start()
        print(proxy.endpoint, flush=True)
        sys.stdin.read()
        proxy.stop()
