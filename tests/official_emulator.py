"""Starting and stopping the official emulator and `tidemark pubsub` for tests, on a free port of loopback."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom

from google.api_core import exceptions as api

from tidemark.local.services.emulator_choice import choose_emulator
from tidemark.pipeline.pubsub.connection import publisher_client

READY_WITHIN_SECONDS = 240
STOPPED_WITHIN_SECONDS = 10
HOST = "127.0.0.1"
PORTS = range(12_000, 32_000)
"""Ports for servers: below those that Linux gives to outgoing connections, which would take a free one in between."""

PORTS_TRIED = 100


def running_emulator(log: Path) -> AbstractContextManager[str]:
    """The official emulator's `host:port` for as long as the block runs; its output is in `log`."""
    port = free_port()
    return _running(choose_emulator("official").command(HOST, port), f"{HOST}:{port}", log)


def running_own_pubsub(log: Path, *options: str) -> AbstractContextManager[str]:
    """The same of `tidemark pubsub`, with these options."""
    port = free_port()
    return _running([*choose_emulator("local").command(HOST, port), *options], f"{HOST}:{port}", log)


@contextmanager
def _running(command: list[str], address: str, log: Path) -> Iterator[str]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(process, address, log)
        yield address
    finally:
        end(process, signal.SIGKILL)  # nothing of it is kept, and the official one takes over 10 s to end


def end(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the process to end, and kill it if it does not."""
    process.send_signal(number)
    try:
        process.wait(STOPPED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Return once the server answers. Raises AssertionError, with its output, where it does not."""
    until = time.monotonic() + READY_WITHIN_SECONDS
    with publisher_client(address) as client:
        while time.monotonic() < until and process.poll() is None:
            try:
                list(client.list_topics(project="projects/ready", retry=None, timeout=2))
                return
            except api.GoogleAPICallError:
                time.sleep(0.2)
    raise AssertionError(f"the server at {address} did not become ready:\n{log.read_text(errors='replace')}")


def free_port(count: int = 1) -> int:
    """A port of loopback that nobody listens on, nor on those that follow it, `count` together. It is a random one, so
    that parallel tests do not choose the same."""
    for port in SystemRandom().sample(PORTS, PORTS_TRIED):
        with ExitStack() as probes, suppress(OSError):
            for number in range(count):
                probes.enter_context(socket.socket()).bind((HOST, port + number))
            return port
    raise AssertionError(f"none of {PORTS_TRIED} ports of {PORTS} is free")
