"""Starting and stopping the official emulator for tests, on a free port of loopback."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.api_core import exceptions as api

from pipeline.pubsub.connection import publisher_client
from pipeline.services.emulator import emulator_command

READY_WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 10
HOST = "127.0.0.1"


@contextmanager
def running_emulator(log: Path) -> Iterator[str]:
    """An emulator's `host:port` for as long as the block runs; its output is in `log`."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(emulator_command(HOST, port), stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(process, f"{HOST}:{port}", log)
        yield f"{HOST}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Return once the emulator answers. Raises AssertionError, with its output, where it does not."""
    until = time.monotonic() + READY_WITHIN_SECONDS
    client = publisher_client(address)
    try:
        while time.monotonic() < until and process.poll() is None:
            try:
                list(client.list_topics(project="projects/ready", retry=None, timeout=2))
                return
            except api.GoogleAPICallError:
                time.sleep(0.2)
    finally:
        client.transport.close()
    raise AssertionError(f"the emulator at {address} did not become ready:\n{log.read_text(errors='replace')}")


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
