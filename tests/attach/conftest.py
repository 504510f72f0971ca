"""What these tests share."""

import socket

import pytest


@pytest.fixture(autouse=True)
def _without_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port is one for all tests."""
    monkeypatch.setenv("TIDEMARK_METRICS__PAGE", "false")


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
