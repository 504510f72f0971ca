"""An HTTP server on loopback that answers as a test's handler does, and single requests of any server."""

import http.client
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

from tests.official_emulator import HOST


class Quiet(BaseHTTPRequestHandler):
    """Says nothing of what it answers."""

    def log_message(self, *_: object) -> None: ...

    def reply(self, content: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    body: bytes
    headers: Message


def ask(port: int, method: str, path: str, headers: Iterable[tuple[str, str]], body: str = "") -> Answer:
    """One request of a server on loopback, with these headers alone: one of them may come twice, or not at all."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=30)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), answer.headers)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server, until the block is left."""
    server = ThreadingHTTPServer((HOST, 0), handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
