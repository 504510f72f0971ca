"""What these tests share."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def _at_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch, unused_port: int) -> None:
    monkeypatch.setenv("TIDEMARK_METRICS__LISTEN", f"127.0.0.1:{unused_port}")
