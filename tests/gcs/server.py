"""A Cloud Storage server on loopback: `fake-gcs-server` in memory, with the XML proxy in front of it."""

import contextlib
import http.client
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.gcs.tools import fake_gcs_server
from tests.gcs.xml_proxy import XmlHandler, XmlProxy
from tests.official_emulator import free_port
from tidemark.pipeline.errors import ServiceFailed

READY_SECONDS = 20.0
ANSWER_SECONDS = 5.0
STOP_SECONDS = 5.0
LOCAL_PROJECT = "tidemark-local"


class CloudStorageServer:
    """A context: both processes' ports are free ones, and both have ended when it is left."""

    def __init__(self, handler: type[XmlHandler] = XmlHandler) -> None:
        self._proxy = XmlProxy(handler=handler)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.gettempdir()) / f"tidemark-gcs-{self._proxy.server_address[1]}.log"

    @property
    def endpoint(self) -> str:
        """One address for the JSON API, delta-rs and Spark."""
        return self._proxy.endpoint

    @property
    def upstream_port(self) -> int:
        """The port of the server itself, for another proxy in front of it."""
        return self._proxy.upstream_port

    def __enter__(self) -> Self:
        program = fake_gcs_server()
        self._proxy.upstream_port = free_port()
        options = {
            "scheme": "http",
            "host": "127.0.0.1",
            "port": str(self._proxy.upstream_port),
            "backend": "memory",
            "external-url": self.endpoint,  # so that the addresses it hands out are the proxy's
            "log-level": "warn",
        }
        command = [str(program), *(part for key, value in options.items() for part in (f"-{key}", value))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._proxy.start()
        try:
            self._wait_until_ready()
        except ServiceFailed:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._log.unlink(missing_ok=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                return self._ask("GET", "/_internal/healthcheck")
            time.sleep(0.05)
        raise ServiceFailed(f"the Cloud Storage server did not become ready; its log is {self._log}")

    def _ask(self, method: str, path: str, body: str = "") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ServiceFailed(f"the Cloud Storage server answered {method} {path} with {response.status}")

    def _stop(self) -> None:
        self._proxy.stop()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
