"""The port that a monitoring system, a load balancer or Kubernetes asks: `/metrics`, `/healthz` and `/livez`.

It answers GET, changes nothing, and tells counts, ages and names of sensors, never what a message says.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tidemark.pipeline.hosts import is_ours

TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"

IDLE_SECONDS = 10.0
"""How long a connection may say nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where the answers come from, and the host names that may be asked besides loopback and addresses; without
    `scrape` there are no metrics here."""

    problems: Callable[[], list[str]]
    allowed_hosts: Collection[str] = ()
    scrape: Callable[[], bytes] | None = None

    def answer(self, path: str, hosts: Sequence[str]) -> tuple[HTTPStatus, str, bytes]:
        """The status, the content type and the content of a page, for a request with these `Host` headers."""
        if not is_ours(hosts, self.allowed_hosts, any_address=True):
            refused = {"error": f"the host {', '.join(hosts)!a} is not ours; add it to dagster.allowed_hosts"}
            return HTTPStatus.FORBIDDEN, JSON, json.dumps(refused).encode() + b"\n"
        match path.partition("?")[0]:
            case "/livez":
                return HTTPStatus.OK, JSON, b'{"alive": true}\n'
            case "/healthz":
                problems = self.problems()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                said = {"healthy": not problems, "problems": problems}
                return status, JSON, json.dumps(said).encode() + b"\n"
            case "/metrics" if self.scrape is not None:
                return HTTPStatus.OK, TEXT, self.scrape()
        return HTTPStatus.NOT_FOUND, JSON, b'{"error": "ask for /metrics, /healthz or /livez"}\n'


def serve(host: str, port: int, asked: Asked) -> ThreadingHTTPServer:
    """Serve the pages from a thread. Raises OSError if the address cannot be bound."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            status, content_type, content = asked.answer(self.path, self.headers.get_all("Host", []))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def version_string(self) -> str:
            return "tidemark"

        def log_message(self, *_: object) -> None:
            """Nothing: a probe every few seconds would fill the log."""

    server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=True)
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
