"""Fixtures for tests marked `gcs`; the server starts when the first of them asks for it."""

import uuid
from collections.abc import Iterator

import pytest

from pipeline.settings import LakeSettings
from tests.gcs.server import CloudStorageServer


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[CloudStorageServer]:
    """The server, for what needs more than its address."""
    with CloudStorageServer() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_endpoint(gcs_server: CloudStorageServer) -> str:
    """The server's address, for the JSON API, delta-rs and Spark alike."""
    return gcs_server.endpoint


@pytest.fixture
def gcs_lake_settings(gcs_server: CloudStorageServer) -> LakeSettings:
    """A lake of its own: a prefix in a new bucket."""
    bucket = f"tidemark-{uuid.uuid4().hex[:12]}"
    gcs_server.create_bucket(bucket)
    return LakeSettings(uri=f"gs://{bucket}/lake", endpoint=gcs_server.endpoint)
