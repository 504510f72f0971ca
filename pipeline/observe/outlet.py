"""Exports the measurements of a process over an HTTP port, or to an OTLP receiver.

Pipelines with equal `[metrics]` settings share an outlet, which the first tick opens. The code server and `tidemark
attach` open outlets; processes of runs do not.

The port serves `/metrics`, `/healthz` and `/livez` for monitoring systems, and the page for browsers. It answers only
GET and HEAD requests, and changes nothing. Monitoring systems get figures and names, but no content of messages. The
page also names streams.

OTLP is sent from a thread of this module, because the thread of OpenTelemetry's SDK restarts in forked processes.
"""

import base64
import hashlib
import importlib.util
import json
import logging
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from markupsafe import Markup

from tidemark.pipeline.charts import STYLE as CHART_STYLE
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.machine import is_ours
from tidemark.pipeline.settings_sections import MetricsSettings

if TYPE_CHECKING:
    from tidemark.pipeline.observe.recorder import Measured, Recorder
    from tidemark.pipeline.observe.telemetry import Telemetry

logger = logging.getLogger(__name__)

TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"

HTML, PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"

FOLDER = files("tidemark.pipeline.observe").joinpath("templates")
SCRIPT, PAGE_STYLE = (Markup(FOLDER.joinpath(name).read_text()) for name in ("page.js", "page.css"))  # noqa: S704
STYLE = CHART_STYLE + PAGE_STYLE
"""The script and the style of the page. The Content-Security-Policy allows no other script or style."""


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
"""The headers of each response. No other site can read, embed or frame a response. The page can run only its own
script, and can send requests only to its own address."""

FAILED = b'{"error": "the request failed; the log says why"}\n'

IDLE_SECONDS = 10.0
"""Seconds after which an idle connection is closed."""

EXTRA = "tidemark-pubsub[metrics]"
NEEDED = {"prometheus": "opentelemetry.exporter.prometheus", "otlp": "opentelemetry.exporter.otlp.proto.http"}

EVERY, EVERY_SECONDS = "OTEL_METRIC_EXPORT_INTERVAL", 15.0
"""OpenTelemetry's variable for the export interval in milliseconds, and the default interval in seconds. The default is
short enough for alerts, which are evaluated over minutes."""

_open: dict[object, "ProcessOutlet"] = {}
_lock = Lock()


def check_libraries(chosen: MetricsSettings) -> None:
    """Raise ToolMissing if `metrics.export` needs a library that is not installed. Imports no library."""
    if not chosen.export:
        return
    with suppress(ModuleNotFoundError):  # a package around the module is missing, too
        if importlib.util.find_spec(NEEDED[chosen.export]) is not None:
            return
    raise ToolMissing(f'metrics.export = "{chosen.export}" needs more libraries: pip install "{EXTRA}"')


def outlet_of(chosen: MetricsSettings, allowed_hosts: Iterable[str] = ()) -> "ProcessOutlet":
    """Return this process's outlet for these settings. The first call creates the outlet. Further calls may add host
    names that the port accepts in requests (`allowed_hosts`)."""
    with _lock:
        key = _key(chosen)
        if key not in _open:
            _open[key] = ProcessOutlet(chosen)
        _open[key].allowed_hosts.update(name.lower() for name in allowed_hosts)
        return _open[key]


def _key(chosen: MetricsSettings) -> object:
    return chosen.export, chosen.address if chosen.listens else None


def send_every_seconds() -> float:
    written = os.environ.get(EVERY, "")
    return int(written) / 1000 if written.isdecimal() and int(written) else EVERY_SECONDS


class ProcessOutlet:
    """Exports the current values of all recorders passed to `join`: through its port on request, or over OTLP at an
    interval. The port accepts only requests whose host is loopback, an IP address, or one of `allowed_hosts`."""

    def __init__(self, chosen: MetricsSettings) -> None:
        self._chosen = chosen
        self._recorders: list[Recorder] = []
        self._ended = Event()
        self.allowed_hosts = set[str]()
        self._telemetry: Telemetry | None = None
        if chosen.export:
            from tidemark.pipeline.observe import telemetry  # only now: it imports OpenTelemetry's SDK

            self._telemetry = telemetry.Telemetry(chosen, lambda: list(self._recorders))
        self._server: ThreadingHTTPServer | None = None
        if chosen.export == "otlp":
            Thread(target=self._send, name="metrics", daemon=True).start()

    def listen(self) -> None:
        """Open the port, unless it is open or the settings name none. Raises OSError if the port is taken. Metrics over
        OTLP are sent in any case."""
        with _lock:
            if self._chosen.listens and self._server is None:
                self._server = serve(self._chosen.address, self)

    def join(self, recorder: "Recorder") -> None:
        """Export this recorder's current values and health from now on."""
        self._recorders.append(recorder)

    def add(self, measured: "Measured") -> None:
        if self._telemetry is not None:
            self._telemetry.add(measured)

    def problems(self) -> list[str]:
        """List the problems of all pipelines that share this outlet."""
        return [problem for recorder in self._recorders for problem in recorder.problems()]

    def answer(self, path: str, hosts: Sequence[str]) -> tuple[HTTPStatus, str, bytes]:
        """Answer a request for `path`. `hosts` are the values of its `Host` headers. Return the status, the content
        type and the content."""
        if not is_ours(hosts, self.allowed_hosts, any_address=True):
            refused = {"error": f"the host {', '.join(hosts)!a} is not allowed; add it to dagster.allowed_hosts"}
            return HTTPStatus.FORBIDDEN, JSON, json.dumps(refused).encode() + b"\n"
        where, _, query = path.partition("?")
        match where:
            case "/livez":
                return HTTPStatus.OK, JSON, b'{"alive": true}\n'
            case "/healthz":
                problems = self.problems()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                return status, JSON, json.dumps({"healthy": not problems, "problems": problems}).encode() + b"\n"
            case "/metrics" if self._telemetry is not None and self._telemetry.scrape is not None:
                return HTTPStatus.OK, TEXT, self._telemetry.scrape()
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        pages = {one.page.name: one.page for one in self._recorders if one.page is not None}
        page = pages.get(asked.get("pipeline", ""), next(iter(pages.values()), None))
        match where:
            case "/" | "/live" if page is not None:
                return HTTPStatus.OK, HTML, page.html(list(pages), self.problems, whole=where == "/")
            case "/cell" if page is not None:
                x, y = (float(asked[name]) if _is_number(asked.get(name)) else -1.0 for name in "xy")
                return HTTPStatus.OK, PLAIN, page.cell(x, y, asked.get("at", "")).encode()
        return HTTPStatus.NOT_FOUND, JSON, b'{"error": "ask for /metrics, /healthz or /livez"}\n'

    def close(self) -> None:
        """Stop serving and sending."""
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._telemetry is not None:
            self._telemetry.close()
        with _lock:
            _open.pop(_key(self._chosen), None)

    def _send(self) -> None:
        while self._telemetry is not None and not self._ended.wait(send_every_seconds()):
            self._telemetry.send()


def _is_number(text: str | None) -> bool:
    return text is not None and text.replace(".", "", 1).isdecimal() and len(text) < 20


def serve(address: tuple[str, int], outlet: ProcessOutlet) -> ThreadingHTTPServer:
    """Serve the outlet at an address, in a thread. Raises OSError if the address cannot be bound."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            try:
                status, content_type, content = outlet.answer(self.path, self.headers.get_all("Host", []))
            except Exception:
                logger.exception("the request for %a failed", self.path)
                status, content_type, content = HTTPStatus.INTERNAL_SERVER_ERROR, JSON, FAILED
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

        do_HEAD = do_GET  # noqa: N815 (the name that http.server looks for)

        def version_string(self) -> str:
            return "tidemark"

        def log_message(self, *_: object) -> None:
            """Log nothing, because a probe every few seconds would fill the log."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    server = Server(address, Handler)
    Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
