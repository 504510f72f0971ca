"""A receiver of OTLP over HTTP on loopback, which decodes what it gets."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.official_emulator import HOST


@dataclass
class Received:
    """The requests, each with its path and headers."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    came: Event = field(default_factory=Event)

    def newest(self, name: str) -> list[tuple[dict[str, str], Any]]:
        """The points of an instrument in the newest request, with their attributes."""
        found = []
        for resource in self.requests[-1][2].resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        points = getattr(metric, metric.WhichOneof("data")).data_points
                        found += [
                            ({one.key: one.value.string_value for one in point.attributes}, point) for point in points
                        ]
        return found

    def names(self) -> dict[str, str]:
        """The instruments of the newest request, with their units."""
        return {
            metric.name: metric.unit
            for resource in self.requests[-1][2].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def receiving() -> Iterator[Received]:
    """A receiver, until the block is left."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            request = ExportMetricsServiceRequest.FromString(content)
            received.requests.append(
                (self.path, {name.lower(): value for name, value in self.headers.items()}, request)
            )
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            received.came.set()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer((HOST, 0), Handler)
    received.port = server.server_port
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
