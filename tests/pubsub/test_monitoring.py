"""Readings by Cloud Monitoring, on a server on loopback that has its delays, gaps and errors: when they are taken, and
what they promise, held against the truth of random histories; what takes messages from somebody else's base; and when
a snapshot is read instead."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.fixtures_emulator import unique_pubsub
from tests.ingest.model_subscription import pubsub_of
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, Point, Series, metrics_at, served
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served as emulated
from tidemark.pipeline.errors import PermissionMissing, ReadingUnavailable, SnapshotRefused
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import (
    DEAD_LETTERED,
    LIFETIME,
    LOOK_BACK,
    MAX_PAGES,
    OLDEST_AGE,
    REFUSED_WITHIN,
    SAMPLE_PERIOD,
    SOUGHT,
    MonitoringBacklog,
    SnapshotBacklog,
    monitoring_client,
)
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, Server
from tidemark.pipeline.watermark.readings import Reading

BASE = "heartbeats-base"
PATH = f"projects/{PROJECT}/subscriptions/{BASE}"


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def at(count: float) -> datetime:
    return START + seconds(count)


@pytest.fixture
def backlog(monitoring: MetricServiceClient, clock: ManualClock) -> MonitoringBacklog:
    return MonitoringBacklog(monitoring, PATH, clock)


def test_the_last_point_holds_until_old(fake: FakeMonitoring, backlog: MonitoringBacklog, clock: ManualClock) -> None:
    fake.sampled(BASE, at(0), age=5)
    clock.advance(LOOK_BACK - seconds(1))
    assert backlog.read().observed_at == at(-60)
    clock.advance(seconds(1))
    with pytest.raises(ReadingUnavailable):
        backlog.read()


@pytest.mark.parametrize("undelivered", [None, 1, 5_000_000])
def test_a_lone_zero_is_not_believed(fake: FakeMonitoring, backlog: MonitoringBacklog, undelivered: int | None) -> None:
    fake.sampled(BASE, at(-60), age=0, undelivered=undelivered)
    with pytest.raises(ReadingUnavailable, match="zeros, which the message counts contradict"):
        backlog.read()
    fake.sampled(BASE, at(-120), age=42, undelivered=9)
    assert backlog.read().observed_at == at(-180)


def test_a_zero_is_believed_if_all_neighbouring_samples_agree(fake: FakeMonitoring, backlog: MonitoringBacklog) -> None:
    fake.sampled(BASE, at(-60), age=0)
    fake.sampled(BASE, at(-75), undelivered=0)
    assert backlog.read().observed_at == at(-120)
    fake.sampled(BASE, at(-15), undelivered=3)
    with pytest.raises(ReadingUnavailable):
        backlog.read()


@pytest.mark.parametrize("value", [float("nan"), 12.5, -1, 400 * 86400, 1 << 62])
def test_a_value_that_is_no_whole_age_is_none(fake: FakeMonitoring, backlog: MonitoringBacklog, value: float) -> None:
    fake.sampled(BASE, at(-60), age=value, undelivered=0)  # consistent with an age of zero
    with pytest.raises(ReadingUnavailable):
        backlog.read()
    fake.sampled(BASE, at(-120), age=30)
    assert backlog.read().observed_at == at(-180)


PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "NOT_FOUND")
"""The last is of the metric's descriptor, where nothing was ever written."""


def test_an_error_is_an_unknown_backlog_or_lacking_permission(fake: FakeMonitoring, backlog: MonitoringBacklog) -> None:
    fake.sampled(BASE, at(-60), age=30)
    for asked, code in enumerate(PASSING, start=1):
        fake.errors = [grpc.StatusCode[code]]
        with pytest.raises(ReadingUnavailable, match="the next tick asks again"):
            backlog.read()
        assert len(fake.requests) == asked  # a tick asks once, and does not wait for retries
    for code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        fake.errors = [grpc.StatusCode[code]]
        with pytest.raises(PermissionMissing, match=r"monitoring\.timeSeries\.list"):
            backlog.read()
    assert backlog.read().observed_at == at(-120)
    fake.incomplete = "a region did not answer"
    with pytest.raises(ReadingUnavailable, match="a region did not answer"):
        backlog.read()


def test_other_subscriptions_and_projects_do_not_mix_in(fake: FakeMonitoring, backlog: MonitoringBacklog) -> None:
    fake.sampled("heartbeats-tracking", at(-30), age=1)
    fake.sampled(BASE, at(-30), age=2, project="another-project")
    with pytest.raises(ReadingUnavailable):
        backlog.read()
    fake.sampled(BASE, at(-90), age=500)
    assert backlog.read().oldest_unacked == at(-90 - 60 - 500 - 1)


def test_an_answer_in_pages_is_read_to_its_end(fake: FakeMonitoring, backlog: MonitoringBacklog) -> None:
    fake.page_size = 2
    for minute in range(1, 8):
        fake.sampled(BASE, at(-60 * minute), age=0, undelivered=3 if minute < 6 else 0)
    assert backlog.read().observed_at == at(-60 * 6 - 60)
    assert fake.asked_for(OLDEST_AGE) == 4


def test_an_answer_without_an_end_is_given_up(fake: FakeMonitoring, backlog: MonitoringBacklog) -> None:
    fake.page_size = 1
    fake.series = [Series(OLDEST_AGE, BASE)]
    for second in range(MAX_PAGES + 1):
        fake.sampled(BASE, at(-second), age=3)
    with pytest.raises(ReadingUnavailable, match="pages"):
        backlog.read()


MINUTES = 15
NEVER = 1 << 40
PATH_OF_TRUTH = f"projects/{PROJECT}/subscriptions/base"


@dataclass(frozen=True)
class Message:
    """When it was published and acknowledged."""

    published: datetime
    acknowledged: datetime


@dataclass(frozen=True)
class Sampling:
    """How one minute was sampled: each metric at a moment of its own, rounded in some way, shown after a while."""

    age_before_end: timedelta
    number_before_end: timedelta
    rounding: Callable[[float], int]
    visible_after: timedelta
    gap: str


def after(milliseconds: int) -> datetime:
    return START + timedelta(milliseconds=milliseconds)


def oldest(messages: list[Message], at: datetime) -> tuple[datetime, int]:
    """When the oldest outstanding message was published, or that moment, and how many are outstanding."""
    outstanding = [each.published for each in messages if each.published <= at < each.acknowledged]
    return min(outstanding, default=at), len(outstanding)


durations = st.integers(0, 60_000).map(lambda milliseconds: timedelta(milliseconds=milliseconds))
histories = st.lists(
    st.builds(
        lambda published, lives: Message(after(published), after(published + (lives or NEVER))),
        st.integers(-600_000, MINUTES * 60_000),
        st.none() | st.integers(1, 2_000) | st.integers(1, 600_000),
    ),
    max_size=25,
)
samplings = st.lists(
    st.builds(
        Sampling,
        age_before_end=durations,
        number_before_end=durations,
        rounding=st.sampled_from([math.floor, math.ceil, round]),
        visible_after=st.integers(0, 240).map(lambda seconds: timedelta(seconds=seconds)),
        gap=st.sampled_from(["", "", "", "age", "undelivered"]),
    ),
    min_size=MINUTES,
    max_size=MINUTES,
)


@settings(deadline=None, max_examples=25)
@given(messages=histories, how=samplings, asked=st.lists(st.integers(0, MINUTES * 60), min_size=1, max_size=6))
def test_no_reading_is_newer_than_the_truth(messages: list[Message], how: list[Sampling], asked: list[int]) -> None:
    clock = ManualClock(START)
    fake = FakeMonitoring(clock.now)
    moments = {START + SAMPLE_PERIOD * number: each for number, each in enumerate(how)}
    for end, each in moments.items():  # what the definitions of the two metrics make of the truth
        at = end - each.age_before_end
        age = each.rounding((at - oldest(messages, at)[0]).total_seconds())
        number = oldest(messages, end - each.number_before_end)[1]
        shown = {"age": age, "undelivered": number} | dict.fromkeys([each.gap] if each.gap else [])
        fake.sampled("base", end, visible_after=each.visible_after, **shown)
    with served(fake) as address, monitoring_client(Server(address)) as client:
        backlog = MonitoringBacklog(client, PATH_OF_TRUTH, clock)
        for second in sorted(asked):
            clock.advance(START + timedelta(seconds=second) - clock.now())
            try:
                reading = backlog.read()
            except ReadingUnavailable:
                continue
            each = moments[reading.observed_at + SAMPLE_PERIOD]
            sampled_at = reading.observed_at + SAMPLE_PERIOD - each.age_before_end
            assert reading.observed_at <= sampled_at <= clock.now() - each.visible_after
            assert reading.oldest_unacked <= oldest(messages, sampled_at)[0] <= reading.no_later_than
            assert all(
                reading.oldest_unacked <= one.published
                for one in messages
                if one.acknowledged > sampled_at or one.published > sampled_at
            )


@pytest.fixture
def pubsub(fake: FakeMonitoring) -> Iterator[PubSubSettings]:
    with emulated(PubSubModel(rng=random.Random(0))) as address, served(fake) as metrics, metrics_at(metrics):
        yield unique_pubsub(address).model_copy(update={"attach": True, "project": fake.project})


def told(pubsub: PubSubSettings, clock: ManualClock) -> list[str]:
    return list(Subscriptions(Settings(pubsub=pubsub), Kept(), clock).taken_away())


def counts(fake: FakeMonitoring, pubsub: PubSubSettings, metric: str, *values: int, result: str = "success") -> None:
    points = [Point(START - (number + 1) * LOOK_BACK / 10, value) for number, value in enumerate(values)]
    labels = {"response_class": result}
    fake.series.append(Series(metric, pubsub.base_subscription, points, fake.project, labels))


def test_seeks_and_dead_letters_are_counted(fake: FakeMonitoring, pubsub: PubSubSettings, clock: ManualClock) -> None:
    assert told(pubsub, clock) == []
    counts(fake, pubsub, SOUGHT, 1, 0)
    counts(fake, pubsub, SOUGHT, 1, result="invalid")
    counts(fake, pubsub, DEAD_LETTERED, 3, 4)
    sought, moved = told(pubsub, clock)
    assert sought.startswith(f"{pubsub.base_path} was sought in the last 10m (seeks: 2)")
    assert moved.startswith(f"{pubsub.base_path} moved messages to its dead-letter topic in the last 10m (7)")
    assert told(pubsub.model_copy(update={"attach": False}), clock) == []
    fake.errors = [grpc.StatusCode.PERMISSION_DENIED]
    assert told(pubsub, clock) == []
    clock.advance(2 * LOOK_BACK)
    assert told(pubsub, clock) == []


# A snapshot's reading, and Cloud Monitoring's where that is refused


class Snapshots:
    """Readings by snapshot: refused within an hour of seven days, as the service refuses them."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.oldest = clock.now()
        self.taken = 0

    def read(self) -> Reading:
        self.taken += 1
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
    unlimited = Spending(clock, pubsub_of(None), SAMPLE_PERIOD)
    return BudgetedBacklog(snapshots, unlimited, PATH, monitoring=by_metrics)


def test_after_a_refusal_monitoring_is_read_until_a_snapshot_can_succeed(
    snapshots: Snapshots, fake: FakeMonitoring, monitoring: MetricServiceClient, clock: ManualClock
) -> None:
    backlog = auto(snapshots, monitoring, clock)
    snapshots.oldest = START - timedelta(days=6, hours=23, minutes=30)
    fake.sampled("heartbeats-base", START - SAMPLE_PERIOD, age=7 * 24 * 3600 - 1800)
    readings = [backlog.read() for _ in range(5)]
    assert {reading.source for reading in readings} == {"monitoring"}
    assert all(reading.oldest_unacked < snapshots.oldest for reading in readings)
    assert snapshots.taken == 1

    snapshots.oldest = START - timedelta(hours=1)  # it landed; monitoring shows it minutes later
    clock.advance(SAMPLE_PERIOD)
    assert backlog.read().source == "monitoring"
    fake.sampled("heartbeats-base", START + SAMPLE_PERIOD, age=3660)
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
