"""Exports the measurements of a process: one outlet for each distinct `[metrics]` of its pipelines, opened by the first
tick.

The code server ticks and opens outlets; processes of runs do not. Prometheus scrapes a port. OTLP is sent by our own
thread, which a forked process does not inherit, unlike the thread of OpenTelemetry's SDK.
"""

import importlib.util
import os
from collections.abc import Iterable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.observe.recorder import Measured, Recorder
from tidemark.pipeline.observe.serving import Asked, serve
from tidemark.pipeline.settings_sections import MetricsSettings

if TYPE_CHECKING:
    from tidemark.pipeline.observe.page import Page
    from tidemark.pipeline.observe.telemetry import Telemetry

EXTRA = "tidemark-pubsub[metrics]"
NEEDED = {"prometheus": "opentelemetry.exporter.prometheus", "otlp": "opentelemetry.exporter.otlp.proto.http"}

EVERY, EVERY_SECONDS = "OTEL_METRIC_EXPORT_INTERVAL", 15.0
"""OpenTelemetry's variable with the export interval in milliseconds, and the default in seconds: alerts are evaluated
over minutes."""

_open: dict[str, "ProcessOutlet"] = {}
_lock = Lock()


def check_libraries(chosen: MetricsSettings) -> None:
    """Raise ToolMissing if the settings ask for an export whose library is not installed. Imports no library."""
    needed = NEEDED.get(chosen.export)
    if needed is None:
        return
    try:
        found = importlib.util.find_spec(needed)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ToolMissing(f'metrics.export = "{chosen.export}" needs more libraries: pip install "{EXTRA}"')


def outlet_of(chosen: MetricsSettings, allowed_hosts: Iterable[str] = ()) -> "ProcessOutlet":
    """Return this process' outlet for these settings, opening it on the first call. It also accepts requests to these
    host names. Raises OSError if the port is taken."""
    with _lock:
        key = chosen.model_dump_json()
        if key not in _open:
            _open[key] = ProcessOutlet(chosen)
        _open[key].allowed_hosts.update(name.lower() for name in allowed_hosts)
        return _open[key]


def send_every_seconds() -> float:
    """Return the interval at which metrics are sent by OTLP."""
    written = os.environ.get(EVERY, "")
    return int(written) / 1000 if written.isdecimal() and int(written) else EVERY_SECONDS


class ProcessOutlet:
    """Exports the values of the joined recorders, on request or at an interval."""

    def __init__(self, chosen: MetricsSettings) -> None:
        self._chosen = chosen
        self._recorders: list[Recorder] = []
        self._ended = Event()
        self.allowed_hosts = set[str]()
        self._telemetry: Telemetry | None = None
        if chosen.export:
            from tidemark.pipeline.observe import telemetry  # only now: it imports OpenTelemetry's SDK

            self._telemetry = telemetry.Telemetry(chosen, lambda: list(self._recorders))
        scrape = None if self._telemetry is None else self._telemetry.scrape
        asked = Asked(self.problems, self.allowed_hosts, scrape, self._pages)
        self._server = serve(*chosen.address, asked) if chosen.listens else None
        if chosen.export == "otlp":
            Thread(target=self._send, name="metrics", daemon=True).start()

    def join(self, recorder: Recorder) -> None:
        """Include this recorder's current values and its health."""
        self._recorders.append(recorder)

    def add(self, measured: Measured) -> None:
        """Add to a counter or a histogram."""
        if self._telemetry is not None:
            self._telemetry.add(measured)

    def problems(self) -> list[str]:
        """List the problems of the pipelines of this process."""
        return [problem for recorder in self._recorders for problem in recorder.problems()]

    def _pages(self) -> dict[str, "Page"]:
        pages = (recorder.page for recorder in self._recorders)
        return {page.name: page for page in pages if page is not None}

    def close(self) -> None:
        """Stop serving and sending."""
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._telemetry is not None:
            self._telemetry.close()
        with _lock:
            _open.pop(self._chosen.model_dump_json(), None)

    def _send(self) -> None:
        while self._telemetry is not None and not self._ended.wait(send_every_seconds()):
            self._telemetry.send()
