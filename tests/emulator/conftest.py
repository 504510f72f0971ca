"""The two servers that one contract holds to."""

import uuid
from collections.abc import Iterator

import pytest

from tests.emulator.servers import OFFICIAL, OWN, Server
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client


@pytest.fixture(params=[OFFICIAL, OWN])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    address = request.getfixturevalue(request.param)
    with publisher_client(address) as publisher, subscriber_client(address) as subscriber:
        yield Server(f"project-{uuid.uuid4().hex[:12]}", publisher, subscriber)


@pytest.fixture
def topic(server: Server) -> str:
    return server.topic()


@pytest.fixture
def base(server: Server, topic: str) -> str:
    """A subscription of that topic."""
    return server.subscription(topic)
