"""Fixtures on the official emulator: one for the whole run, and a topic and subscriptions of their own per test."""

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from pipeline.pubsub.connection import publisher_client, subscriber_client
from pipeline.settings import PubSubSettings
from tests.emulator import running_emulator


@pytest.fixture(scope="session")
def emulator_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator that runs until the tests are over."""
    with running_emulator(tmp_path_factory.mktemp("emulator") / "emulator.log") as address:
        yield address


@pytest.fixture(scope="session")
def subscriber(emulator_host: str) -> Iterator[SubscriberClient]:
    client = subscriber_client(emulator_host)
    yield client
    client.transport.close()


@pytest.fixture(scope="session")
def publisher(emulator_host: str) -> Iterator[PublisherClient]:
    client = publisher_client(emulator_host)
    yield client
    client.transport.close()


@pytest.fixture
def fresh_pubsub(emulator_host: str) -> PubSubSettings:
    """Settings with a project, a topic and subscriptions that nobody else uses; nothing of it exists yet."""
    unique = uuid.uuid4().hex[:12]
    return PubSubSettings(
        project=f"project-{unique}",
        topic=f"topic-{unique}",
        base_subscription=f"base-{unique}",
        tracking_subscription=f"tracking-{unique}",
        emulator_host=emulator_host,
        ack_deadline=timedelta(seconds=10),
        pull_wait=timedelta(seconds=1),
    )
