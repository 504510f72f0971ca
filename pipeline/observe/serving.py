"""The HTTP port for monitoring systems, load balancers and Kubernetes (`/metrics`, `/healthz`, `/livez`), and for the
page in a browser.

It answers GET requests and changes nothing. `/metrics` and the probes contain only counts, ages and names of sensors;
the page also names streams. No other content of messages is shown.
"""

import base64
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from tidemark.pipeline.charts import STYLE as CHART_STYLE
from tidemark.pipeline.machine import is_ours

if TYPE_CHECKING:
    from tidemark.pipeline.observe.page import Page

logger = logging.getLogger(__name__)

TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"

HTML, PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"

FOLDER = files("tidemark.pipeline.observe").joinpath("templates")
SCRIPT, STYLE = FOLDER.joinpath("page.js").read_text(), CHART_STYLE + FOLDER.joinpath("page.css").read_text()
"""The script and the style of the page. The Content-Security-Policy allows no others."""


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": f"default-src 'none'; script-src {_hashed(SCRIPT)}; style-src {_hashed(STYLE)}; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""The headers of each response. No other page may read, embed or frame it; the page may run only its own script and
send requests only to its own address."""

FAILED = b'{"error": "this failed; the log says why"}\n'

IDLE_SECONDS = 10.0
"""Idle timeout of a connection."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The sources of the responses, and the host names that are accepted besides loopback and IP addresses. Without
    `scrape` there are no metrics; without `pages`, keyed by pipeline, there is no page."""

    problems: Callable[[], list[str]]
    allowed_hosts: Collection[str] = ()
    scrape: Callable[[], bytes] | None = None
    pages: Callable[[], "Mapping[str, Page]"] = dict

    def answer(self, path: str, hosts: Sequence[str]) -> tuple[HTTPStatus, str, bytes]:
        """Return the status, the content type and the content for a request with these `Host` headers."""
        if not is_ours(hosts, self.allowed_hosts, any_address=True):
            refused = {"error": f"the host {', '.join(hosts)!a} is not ours; add it to dagster.allowed_hosts"}
            return HTTPStatus.FORBIDDEN, JSON, json.dumps(refused).encode() + b"\n"
        where, _, query = path.partition("?")
        match where:
            case "/livez":
                return HTTPStatus.OK, JSON, b'{"alive": true}\n'
            case "/healthz":
                problems = self.problems()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                said = {"healthy": not problems, "problems": problems}
                return status, JSON, json.dumps(said).encode() + b"\n"
            case "/metrics" if self.scrape is not None:
                return HTTPStatus.OK, TEXT, self.scrape()
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        pages = self.pages()
        page = pages.get(asked.get("pipeline", ""), next(iter(pages.values()), None))
        match where:
            case "/" | "/live" if page is not None:
                return HTTPStatus.OK, HTML, page.html(list(pages), self.problems, whole=where == "/")
            case "/cell" if page is not None:
                x, y = (float(asked[name]) if _is_number(asked.get(name)) else -1.0 for name in "xy")
                return HTTPStatus.OK, PLAIN, page.cell(x, y, asked.get("at", "")).encode()
        return HTTPStatus.NOT_FOUND, JSON, b'{"error": "ask for /metrics, /healthz or /livez"}\n'


def _is_number(text: str | None) -> bool:
    return text is not None and text.replace(".", "", 1).isdecimal() and len(text) < 20


def serve(host: str, port: int, asked: Asked) -> ThreadingHTTPServer:
    """Start serving in a thread. Raises OSError if the address cannot be bound."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            try:
                status, content_type, content = asked.answer(self.path, self.headers.get_all("Host", []))
            except Exception:
                logger.exception("%a cannot be answered", self.path)
                status, content_type, content = HTTPStatus.INTERNAL_SERVER_ERROR, JSON, FAILED
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def version_string(self) -> str:
            return "tidemark"

        def log_message(self, *_: object) -> None:
            """Log nothing: a probe every few seconds would fill the log."""

    server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=True)
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
