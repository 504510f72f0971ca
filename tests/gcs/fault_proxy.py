"""A proxy in front of the Cloud Storage server that counts calls by their class and plays faults, in its own process:
a client that keeps Python's lock while it waits would otherwise stop the proxy that is to answer it.
"""

import json
import re
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.gcs.apart import apart
from tests.gcs.messages import MessageHandler

CONTROL = "/_proxy"
CONTROL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the next `times` calls whose `method permission name` the expression `calls` is found in: they
    are answered after `delay` seconds, and with `status` instead of being forwarded (0: forwarded). `loses_answer`
    forwards the call and then cuts the connection."""

    calls: str
    delay: float = 0.0
    status: int = 0
    loses_answer: bool = False
    times: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the permission that it needs, the object or prefix, the status that was answered, and when (in seconds
    since the epoch)."""

    permission: str
    name: str
    status: int
    at: float = 0.0

    @property
    def price_class(self) -> str:
        """The class by Google's price list: A, B, or free."""
        kind = self.permission.rpartition(".")[2]
        return {"delete": "free", "get": "B"}.get(kind, "A")


class FaultProxy:
    """The handle of a running proxy."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def play(self, *faults: Fault) -> None:
        """Replace the faults that are played; none stops them."""
        self._ask([asdict(fault) for fault in faults])

    def calls(self) -> list[Call]:
        """The calls since the last time this was asked."""
        return [Call(*call) for call in self._ask(None)]

    def _ask(self, faults: list[dict[str, Any]] | None) -> Any:
        request = urllib.request.Request(  # noqa: S310 (the scheme is ours)
            f"{self.endpoint}{CONTROL}", data=json.dumps(faults).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=CONTROL_SECONDS) as answer:  # noqa: S310 (the scheme is ours)
            return json.loads(answer.read())


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy before the server at `upstream`, until the block is left."""
    with apart("tests.gcs.fault_proxy", upstream) as port:
        yield FaultProxy(int(port))


def table(calls: list[Call]) -> Counter[tuple[str, str, str]]:
    """How many calls there are of each class and permission, by the place of the object."""
    return Counter((call.price_class, call.permission, place_of(call.name)) for call in calls)


def place_of(name: str) -> str:
    """The table or folder that an object is in, and whether in a table's log."""
    parts = name.removeprefix("lake/").split("/")
    return "/".join(parts[:2]) if parts[1:] and parts[1] in ("_delta_log", "log", "archive") else parts[0]


@dataclass(slots=True)
class _State:
    faults: list[Fault] = field(default_factory=list)
    played: Counter[int] = field(default_factory=Counter)
    calls: list[Call] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def control(self, asked: list[dict[str, Any]] | None) -> bytes:
        with self.lock:
            if asked is not None:
                self.faults, self.played = [Fault(**fault) for fault in asked], Counter()
                return b"[]"
            calls, self.calls = self.calls, []
            return json.dumps([[call.permission, call.name, call.status, call.at] for call in calls]).encode()

    def fault_of(self, text: str) -> Fault | None:
        with self.lock:
            for number, fault in enumerate(self.faults):
                if re.search(fault.calls, text) and self.played[number] < fault.times:
                    self.played[number] += 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.state = _State()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(MessageHandler):
    server: _Server

    def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
        body = self._body()
        if self.path == CONTROL:
            return self._reply(HTTPStatus.OK, {}, self.server.state.control(json.loads(body)))
        permission, name = permission_of(self.command, self.path, body)
        fault = self.server.state.fault_of(f"{self.command} {permission} {name}")
        if fault is not None:
            time.sleep(fault.delay)
        if fault is not None and fault.status:
            status, headers, content = fault.status, {"Content-Type": "application/json"}, _error(fault.status)
        else:
            status, headers, content = self._forward(body)
        with self.server.state.lock:
            self.server.state.calls.append(Call(permission, name, status, time.time()))
        if fault is not None and fault.loses_answer:
            self.close_connection = True
            return self.connection.close()
        return self._reply(status, headers, content)

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the base class looks for these names

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):  # the client gave up, or we did
            self.close_connection = True

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        status, headers, content = self._forwarded(
            urlsplit(self.server.upstream).netloc, self.command, self.path, body, dict(self.headers)
        )
        # Uploads go on where we say.
        ours = {key: value.replace(self.server.upstream, self.server.endpoint) for key, value in headers.items()}
        return status, ours, content


def permission_of(method: str, path: str, body: bytes) -> tuple[str, str]:
    """The permission that a call of either API needs, and the object or prefix that it names."""
    url = urlsplit(path)
    query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
    verb = {"GET": "get", "HEAD": "get", "DELETE": "delete", "PATCH": "update"}.get(method, "create")
    if url.path.startswith("/upload/"):
        metadata = re.search(rb'"name":\s*"([^"]+)"', body[:4096])
        return "storage.objects.create", query.get("name") or (metadata[1].decode() if metadata else "")
    if found := re.fullmatch(r"(?:/download)?/storage/v1/b(?:/([^/]+))?(/o)?(?:/(.+))?", url.path):
        bucket, of_objects, name = found.groups()
        if of_objects is None:
            return f"storage.buckets.{verb if bucket or verb == 'create' else 'list'}", ""
        listed = name is None and verb == "get"
        return (
            ("storage.objects.list", query.get("prefix", "")) if listed else (f"storage.objects.{verb}", unquote(name))
        )
    _, _, name = unquote(url.path.lstrip("/")).partition("/")
    return ("storage.objects.list", query.get("prefix", "")) if not name else (f"storage.objects.{verb}", name)


def _error(status: int) -> bytes:
    said = {"code": status, "message": f"played by the proxy: {HTTPStatus(status).phrase}"}
    return json.dumps({"error": said}).encode()


def _main(upstream: str) -> None:
    server = _Server(upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main(sys.argv[1])
