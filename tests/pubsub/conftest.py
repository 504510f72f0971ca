"""A Cloud Monitoring on loopback, its clock, and a client of it."""

from collections.abc import Iterator

import pytest
from google.cloud.monitoring_v3 import MetricServiceClient

from tests.clock import ManualClock
from tests.pubsub.fake_monitoring import START, FakeMonitoring, served
from tidemark.pipeline.pubsub.backlog import monitoring_client
from tidemark.pipeline.settings_sections import Server


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
