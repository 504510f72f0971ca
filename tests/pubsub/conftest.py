"""The server of the tests; and a Cloud Monitoring on loopback, its clock, and a client of it."""

from collections.abc import Iterator

import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.clock import ManualClock
from tests.pubsub.builders import Served
from tests.pubsub.fake_monitoring import START, FakeMonitoring, served
from tidemark.pipeline.pubsub.backlog import monitoring_client
from tidemark.pipeline.settings_sections import PubSubSettings, Server


@pytest.fixture
def served_pubsub(subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings) -> Served:
    """The server of the tests; nothing is provisioned."""
    return Served(subscriber, publisher, fresh_pubsub)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def fake(clock: ManualClock) -> FakeMonitoring:
    return FakeMonitoring(clock.now)


@pytest.fixture
def monitoring(fake: FakeMonitoring) -> Iterator[MetricServiceClient]:
    with served(fake) as address, monitoring_client(Server(address)) as client:
        yield client
