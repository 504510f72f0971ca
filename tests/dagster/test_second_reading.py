"""Which reading a tick of the real sensor takes: the settings' own resource, on servers that refuse and that count."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.house import Ticking, metadata_of, publish, settings_of
from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.fake_monitoring import FakeMonitoring, metrics_at
from tests.pubsub.fake_monitoring import served as serve_monitoring
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served as serve_pubsub
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.pubsub.backlog import OLDEST_AGE
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

CLOCK = SystemClock()
MINUTE = timedelta(minutes=1)
ALMOST_A_WEEK = timedelta(days=6, hours=23, minutes=30)


class ShiftedClock(SystemClock):
    """The machine's clock, some time ago until it is set right: what was published until then is old. Never back."""

    def __init__(self, ago: timedelta) -> None:
        self.ago = ago

    def now(self) -> datetime:
        return super().now() - self.ago


@dataclass
class Service:
    """A Pub/Sub of our own and a Cloud Monitoring that knows its subscriptions as the test tells it."""

    pubsub: PubSubSettings
    fake: FakeMonitoring
    clock: ShiftedClock
    folder: Path
    instance: dg.DagsterInstance

    @property
    def subscriptions(self) -> tuple[str, str]:
        """Base and tracking."""
        return self.pubsub.base_subscription, self.pubsub.tracking_subscription

    def settings(self, **pubsub: str | int) -> Settings:
        """These servers, and what a test sets besides."""
        return settings_of(self.pubsub.model_copy(update=pubsub), self.folder)

    def ticking(self, **pubsub: str | int) -> Ticking:
        """The sensors with these settings, on subscriptions that exist."""
        settings = self.settings(**pubsub)
        publisher, subscriber = (
            publisher_client(self.pubsub.emulator_host),
            subscriber_client(self.pubsub.emulator_host),
        )
        provision(subscriber, publisher, settings.pubsub, settings.contract, CLOCK)
        subscriber.transport.close()
        publisher.transport.close()
        return Ticking(settings, self.instance)

    def publish(self, count: int) -> None:
        """Heartbeats, a second after they happened."""
        publisher = publisher_client(self.pubsub.emulator_host)
        happened = self.clock.now() - timedelta(seconds=1)
        publish(publisher, self.settings(), [(f"stream-{number}", happened) for number in range(count)])
        publisher.transport.close()

    def sample(self, name: str, age: timedelta, undelivered: int) -> None:
        """What the metrics of a subscription say, a minute ago."""
        self.fake.sampled(
            name,
            CLOCK.now() - MINUTE,
            age=int(age.total_seconds()),
            undelivered=undelivered,
            project=self.pubsub.project,
        )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    clock, fake = ShiftedClock(ALMOST_A_WEEK), FakeMonitoring(CLOCK.now)
    with (
        serve_pubsub(PubSubModel(rng=random.Random(1)), clock=clock) as address,
        serve_monitoring(fake) as endpoint,
        metrics_at(endpoint),
        dg.DagsterInstance.ephemeral() as instance,
    ):
        pubsub = unique_pubsub(address)
        fake.project = pubsub.project
        yield Service(pubsub, fake, clock, tmp_path, instance)


def read_by(told: Mapping[str, object]) -> tuple[object, object]:
    """By what a tick read base and tracking."""
    return told["base/read_by"], told["tracking/read_by"]


def told_by_a_tick(ticking: Ticking) -> Mapping[str, object]:
    """What one tick says of the watermark."""
    return metadata_of(ticking.track(), "watermark")


def test_a_backlog_of_almost_a_week_is_read_by_monitoring_then_by_snapshots_again(
    service: Service,
) -> None:
    ticking = service.ticking()
    service.publish(20)
    service.clock.ago = timedelta(0)
    service.publish(5)
    for name in service.subscriptions:
        service.sample(name, ALMOST_A_WEEK - MINUTE, 20)
    told = told_by_a_tick(ticking)
    assert (read_by(told), told["reason"]) == (("monitoring", "monitoring"), "HELD_INCOMPLETE")
    assert ticking.watermark() is None

    ticking.land()
    service.fake.series.clear()
    for name in service.subscriptions:
        service.sample(name, timedelta(seconds=5), 5)
    told = told_by_a_tick(ticking)
    assert read_by(told) == ("snapshot", "snapshot")
    assert told["reason"] != "HELD_INCOMPLETE"
    assert ticking.lake().heartbeats().extent().rows == 25


def test_while_the_budget_puts_a_reading_of_base_off_monitoring_is_read_also_after_a_restart(service: Service) -> None:
    service.clock.ago = timedelta(0)
    ticking = service.ticking(snapshot_budget=0)
    service.publish(20)
    assert read_by(told_by_a_tick(ticking)) == ("snapshot", "snapshot")
    ticking.land()  # from here on the traffic is known, so that a reading of base has a price
    service.publish(5)
    CLOCK.sleep(0.5)
    for name in service.subscriptions:
        service.sample(name, timedelta(seconds=30), 5)
    for again in (ticking, service.ticking(snapshot_budget=0)):
        told = told_by_a_tick(again)
        asked = service.fake.asked_for(OLDEST_AGE)
        told = told_by_a_tick(again)
        assert service.fake.asked_for(OLDEST_AGE) > asked
        assert "problems" not in told
        assert told["reason"] != "HELD_STALE_READING"
        assert told["readings/snapshot_bytes_last_day"] == 0  # nothing that has a price is taken
