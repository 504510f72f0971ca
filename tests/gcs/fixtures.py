"""Fixtures for tests marked `gcs`; the server starts when the first of them asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gcs.apart import fresh_lake, server_apart
from tests.gcs.fault_proxy import FaultProxy, fault_proxy
from tests.gcs.server import CloudStorageServer
from tests.gcs.tools import gcs_connector
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.spark.connector import connector_file


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[CloudStorageServer]:
    """The server, for what needs more than its address."""
    with CloudStorageServer() as server:
        yield server


@pytest.fixture(scope="session")
def endpoint_apart() -> Iterator[str]:
    """The address of a server in a process of its own."""
    with server_apart() as endpoint:
        yield endpoint


@pytest.fixture
def lake_apart(endpoint_apart: str) -> LakeSettings:
    """A lake of its own on the server apart: for what keeps Python's lock while it waits for an answer."""
    return fresh_lake(endpoint_apart)


@pytest.fixture
def connector_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own cache of tidemark, with the connector that the tests' cache holds."""
    jar = gcs_connector()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    connector_file().parent.mkdir(parents=True)
    connector_file().symlink_to(jar)
    return connector_file().parent


@pytest.fixture
def gcs_lake_settings(gcs_server: CloudStorageServer) -> LakeSettings:
    """A lake of its own: a prefix in a new bucket."""
    return fresh_lake(gcs_server.endpoint)


@pytest.fixture(scope="session")
def proxy_apart(endpoint_apart: str) -> Iterator[FaultProxy]:
    """A proxy before the server apart, shared by tests."""
    with fault_proxy(endpoint_apart) as proxy:
        yield proxy


@pytest.fixture
def proxy(proxy_apart: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy, without a fault and with no call counted."""
    proxy_apart.play()
    proxy_apart.calls()
    yield proxy_apart
    proxy_apart.play()
