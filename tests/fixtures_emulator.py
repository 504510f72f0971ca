"""Fixtures on a Pub/Sub server: one for the whole run, and a topic and subscriptions of their own per test.

The server is the official emulator where it is found, else `tidemark pubsub`. To run on the latter all the same,
set WITHOUT_OFFICIAL_EMULATOR=1.
"""

import os
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.official_emulator import running_emulator, running_own_pubsub
from tidemark.local.services.emulator_choice import choose_emulator
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.settings_sections import PubSubSettings

QUICK_LEASE = timedelta(seconds=10)
"""The shortest ack deadline, of tests that wait until messages come again."""


def why_no_official_emulator() -> str | None:
    """What is missing, or None where the official emulator can be started."""
    if os.environ.get("WITHOUT_OFFICIAL_EMULATOR"):
        return "WITHOUT_OFFICIAL_EMULATOR is set"
    try:
        choose_emulator("official")
    except ToolMissing as missing:
        return str(missing)
    return None


@pytest.fixture(scope="session")
def official_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the official emulator; a test of it is skipped where there is none."""
    if reason := why_no_official_emulator():
        pytest.skip(f"this test is about the official emulator: {reason}")
    with running_emulator(tmp_path_factory.mktemp("emulator") / "emulator.log") as address:
        yield address


@pytest.fixture(scope="session")
def own_pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `tidemark pubsub`."""
    with running_own_pubsub(tmp_path_factory.mktemp("pubsub") / "pubsub.log") as address:
        yield address


@pytest.fixture(scope="session")
def emulator_host(request: pytest.FixtureRequest) -> str:
    """The address of a server that runs until the tests are over."""
    name = "own_pubsub" if why_no_official_emulator() else "official_emulator"
    return request.getfixturevalue(name)


@pytest.fixture(scope="session")
def subscriber(emulator_host: str) -> Iterator[SubscriberClient]:
    with subscriber_client(emulator_host) as client:
        yield client


@pytest.fixture(scope="session")
def publisher(emulator_host: str) -> Iterator[PublisherClient]:
    with publisher_client(emulator_host) as client:
        yield client


@pytest.fixture
def fresh_pubsub(emulator_host: str) -> PubSubSettings:
    """Settings with a project, a topic and subscriptions that nobody else uses; nothing of it exists yet."""
    return unique_pubsub(emulator_host)


def unique_pubsub(address: str) -> PubSubSettings:
    """Settings of names that nobody else uses, on the server at the address."""
    unique = uuid.uuid4().hex[:12]
    return PubSubSettings(
        project=f"project-{unique}",
        topic=f"topic-{unique}",
        base_subscription=f"base-{unique}",
        tracking_subscription=f"tracking-{unique}",
        emulator_host=address,
    )
