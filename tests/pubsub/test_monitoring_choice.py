"""Which reading is taken: a snapshot's, and Cloud Monitoring's where that is refused or too large."""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.clock import ManualClock
from tests.pubsub.builders import subscription_of
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, metrics_at, served
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import SnapshotRefused
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import track
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog, SnapshotBacklog
from tidemark.pipeline.pubsub.monitoring import OLDEST_AGE, UNDELIVERED, AutoBacklog, MonitoringBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.spending import BudgetedBacklog
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.resources.pubsub import PubSubResource

PATH = f"projects/{PROJECT}/subscriptions/heartbeats-base"
WEEK_SECONDS = 7 * 24 * 3600
MINUTE = timedelta(minutes=1)


class Snapshots:
    """Readings by snapshot: refused within an hour of seven days, as the service refuses them."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.oldest = clock.now()
        self.taken = 0
        self.problem: Exception | None = None

    def read(self) -> Reading:
        self.taken += 1
        if self.problem is not None:
            raise self.problem
        if self.clock.now() - self.oldest > LIFETIME - REFUSED_WITHIN:
            raise SnapshotRefused("the oldest message is within an hour of 7 days")
        return Reading(observed_at=self.clock.now(), oldest_unacked=self.oldest, names_a_message=True)


@pytest.fixture
def snapshots(clock: ManualClock) -> Snapshots:
    return Snapshots(clock)


def auto(
    snapshots: Snapshots | SnapshotBacklog,
    monitoring: MetricServiceClient,
    clock: ManualClock,
    max_backlog: int | None = None,
) -> AutoBacklog:
    by_metrics = MonitoringBacklog(monitoring, PATH, clock, timedelta(seconds=5))
    return AutoBacklog(snapshots, by_metrics, clock, max_backlog)


def test_monitoring_is_read_where_the_snapshot_is_refused_and_no_other_is_tried_until_it_can_succeed(
    snapshots: Snapshots, fake: FakeMonitoring, monitoring: MetricServiceClient, clock: ManualClock
) -> None:
    backlog = auto(snapshots, monitoring, clock)
    snapshots.oldest = START - timedelta(days=6, hours=23, minutes=30)
    fake.sampled("heartbeats-base", START - MINUTE, age=WEEK_SECONDS - 1800)
    readings = [backlog.read() for _ in range(5)]
    assert {reading.source for reading in readings} == {"monitoring"}
    assert all(reading.oldest_unacked < snapshots.oldest for reading in readings)
    assert snapshots.taken == 1

    snapshots.oldest = START - timedelta(hours=1)  # it landed; monitoring shows it minutes later
    clock.advance(MINUTE)
    assert backlog.read().source == "monitoring"
    fake.sampled("heartbeats-base", START + MINUTE, age=3660)
    assert backlog.read() == Reading(clock.now(), snapshots.oldest, names_a_message=True)
    asked = fake.asked_for(OLDEST_AGE)
    assert backlog.read().source == "snapshot"
    assert fake.asked_for(OLDEST_AGE) == asked


def test_when_the_snapshot_is_refused_and_monitoring_fails_both_are_reported_and_the_snapshot_is_tried_again(
    snapshots: Snapshots, fake: FakeMonitoring, monitoring: MetricServiceClient, clock: ManualClock
) -> None:
    backlog = auto(snapshots, monitoring, clock)
    snapshots.oldest = START - timedelta(days=6, hours=23, minutes=30)
    with pytest.raises(SnapshotRefused, match=r"within an hour of 7 days.*this does not mean an empty backlog"):
        backlog.read()
    fake.errors = [grpc.StatusCode.PERMISSION_DENIED] * 2
    with pytest.raises(SnapshotRefused, match=r"within an hour of 7 days.*monitoring\.timeSeries\.list"):
        backlog.read()
    snapshots.oldest = START
    assert backlog.read().source == "snapshot"


def test_beyond_max_backlog_monitoring_is_read(
    snapshots: Snapshots, fake: FakeMonitoring, monitoring: MetricServiceClient, clock: ManualClock
) -> None:
    backlog = auto(snapshots, monitoring, clock, max_backlog=1000)
    fake.sampled("heartbeats-base", START - MINUTE, age=900, undelivered=1001)
    assert backlog.read().source == "monitoring"
    assert snapshots.taken == 0
    fake.sampled("heartbeats-base", START, age=800, undelivered=1000)
    assert backlog.read().source == "monitoring"  # the size is asked for once in a sample's period
    clock.advance(MINUTE)
    assert backlog.read().source == "snapshot"
    assert fake.asked_for(UNDELIVERED) == 2


def test_an_unknown_backlog_size_is_reported_once_and_stops_nothing(
    snapshots: Snapshots,
    fake: FakeMonitoring,
    monitoring: MetricServiceClient,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    backlog = auto(snapshots, monitoring, clock, max_backlog=1000)
    fake.errors = [grpc.StatusCode.PERMISSION_DENIED] * 3
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert backlog.read().source == "snapshot"
            clock.advance(MINUTE)
    assert len(caplog.records) == 1
    assert "monitoring.timeSeries.list" in caplog.text


@pytest.fixture
def provisioned(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings
) -> PubSubSettings:
    provision(subscriber, publisher, fresh_pubsub, Settings().contract, SystemClock())
    return fresh_pubsub


def resource_of(settings: PubSubSettings, kept: Kept | None = None, **others: str | int) -> PubSubResource:
    chosen = Settings(pubsub=settings.model_copy(update=others))
    return PubSubResource(settings=chosen, kept=kept or Kept(), clock=SystemClock())


def within_budget(backlog: Backlog) -> Backlog:
    """What is read where the budget allows it."""
    assert isinstance(backlog, BudgetedBacklog)
    return backlog.backlog


def test_with_a_server_that_has_metrics_auto_keeps_what_it_learned_from_tick_to_tick(
    provisioned: PubSubSettings, fake: FakeMonitoring
) -> None:
    with served(fake) as address, metrics_at(address):
        kept = Kept()
        first, second = (resource_of(provisioned, kept) for _ in range(2))
        kept_one = within_budget(first.base_backlog())
        assert isinstance(kept_one, AutoBacklog)
        assert kept_one is within_budget(second.base_backlog())
        assert kept_one is not within_budget(first.tracking_backlog())
        assert first.spending() is second.spending()
        assert first.tracking_backlog().read().source == "snapshot"


def test_a_tick_on_monitoring_alone_decides_and_takes_no_snapshot(
    subscriber: SubscriberClient, provisioned: PubSubSettings, tmp_path: Path
) -> None:
    clock = SystemClock()
    now = clock.now()
    fake = FakeMonitoring(clock.now)
    fake_project(fake, provisioned, now)
    with served(fake) as address, metrics_at(address):
        resource = resource_of(provisioned, reading="monitoring")
        tracked = track(
            subscription_of(subscriber, provisioned, provisioned.tracking_path),
            tracking_backlog=resource.tracking_backlog(),
            base_backlog=resource.base_backlog(),
            log=TrackingLog(DiskObjects(tmp_path), checkpoint_every=100),
            reader=HeartbeatReader(Settings().contract),
            policy=Policy(),
            budget=Budget(1000, 1 << 20, timedelta(seconds=1), 1000),
            clock=clock,
        )
        assert resource.sweep() == 0
    assert tracked.problems == ()
    assert tracked.decision.base is not None
    assert tracked.decision.base.newest.source == "monitoring"
    # What tracking held was published at 90 s before now or a second later: from there on it knows.
    assert tracked.state.complete_from == now - timedelta(seconds=60) - timedelta(seconds=30) + timedelta(seconds=1)


def fake_project(fake: FakeMonitoring, settings: PubSubSettings, now: datetime) -> None:
    """A sample of each subscription of the settings' project, a minute old."""
    for name in (settings.base_subscription, settings.tracking_subscription):
        fake.sampled(name, now - MINUTE, age=30, undelivered=1, project=settings.project)
    fake.project = settings.project
