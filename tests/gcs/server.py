"""A Cloud Storage server on loopback: `fake-gcs-server` in memory, with the XML proxy in front of it."""

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from tests.clock import until
from tests.gcs.tools import fake_gcs_server
from tests.gcs.xml_proxy import XmlHandler, XmlProxy
from tests.official_emulator import end, free_port
from tidemark.pipeline.errors import ServiceFailed

READY_SECONDS = 20.0
LOCAL_PROJECT = "tidemark-local"


class CloudStorageServer:
    """A context: both processes' ports are free ones, and both have ended when it is left."""

    def __init__(self, handler: type[XmlHandler] = XmlHandler) -> None:
        self._proxy = XmlProxy(handler=handler)
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
            until("the Cloud Storage server is ready", self._is_ready, READY_SECONDS)
        except AssertionError as error:
            said = self._log.read_text(errors="replace")
            self.__exit__()
            raise ServiceFailed(f"{error}\n{said}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.stop()
        end(self._process)
        self._log.unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        with suppress(OSError), urlopen(f"http://127.0.0.1:{self.upstream_port}/_internal/healthcheck", timeout=5):
            return True
        return False
