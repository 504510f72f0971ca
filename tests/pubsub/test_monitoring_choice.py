"""Which reading is taken: a snapshot's, and Cloud Monitoring's where that is refused or too large."""

from datetime import timedelta

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient

from tests.clock import ManualClock
from tests.ingest.model_subscription import pubsub_of
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring
from tidemark.pipeline.errors import SnapshotRefused
from tidemark.pipeline.pubsub.backlog import LIFETIME, OLDEST_AGE, REFUSED_WITHIN, MonitoringBacklog, SnapshotBacklog
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.watermark.readings import Reading

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
    snapshots: Snapshots | SnapshotBacklog, monitoring: MetricServiceClient, clock: ManualClock
) -> BudgetedBacklog:
    by_metrics = MonitoringBacklog(monitoring, PATH, clock)
    unlimited = Spending(clock, pubsub_of(None), MINUTE)
    return BudgetedBacklog(snapshots, unlimited, PATH, monitoring=by_metrics)


def test_after_a_refusal_monitoring_is_read_until_a_snapshot_can_succeed(
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


def test_when_both_readings_fail_both_are_reported_and_the_snapshot_is_tried_again(
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
