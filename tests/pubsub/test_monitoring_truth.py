"""What Cloud Monitoring's readings promise, held against the truth of random histories, over real gRPC."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, served
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.settings_sections import Server

NEVER = datetime.max.replace(tzinfo=UTC)
MINUTES = 15
TIMEOUT = timedelta(seconds=5)


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
    rounding: str
    visible_after: timedelta
    gap: str


def after(milliseconds: int) -> datetime:
    return START + timedelta(milliseconds=milliseconds)


def outstanding(messages: list[Message], at: datetime) -> list[datetime]:
    return [each.published for each in messages if each.published <= at < each.acknowledged]


def rounded(seconds: float, how: str) -> int:
    return {"down": math.floor, "up": math.ceil, "near": round}[how](seconds)


def sample(fake: FakeMonitoring, name: str, messages: list[Message], end: datetime, how: Sampling) -> None:
    """What the definitions of the two metrics make of the truth."""
    at = end - how.age_before_end
    oldest = min(outstanding(messages, at), default=at)
    age = rounded((at - oldest).total_seconds(), how.rounding)
    number = len(outstanding(messages, end - how.number_before_end))
    fake.sampled(
        name,
        end,
        age=None if how.gap == "age" else age,
        undelivered=None if how.gap == "number" else number,
        visible_after=how.visible_after,
    )


durations = st.integers(0, 60_000).map(lambda milliseconds: timedelta(milliseconds=milliseconds))
histories = st.lists(
    st.builds(
        lambda published, lives: Message(after(published), NEVER if lives is None else after(published + lives)),
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
        rounding=st.sampled_from(["down", "up", "near"]),
        visible_after=st.integers(0, 240).map(lambda seconds: timedelta(seconds=seconds)),
        gap=st.sampled_from(["", "", "", "age", "number"]),
    ),
    min_size=MINUTES,
    max_size=MINUTES,
)
over_grpc = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


@dataclass(frozen=True)
class Service:
    """A server and the clock that it shows its points by."""

    fake: FakeMonitoring
    client: MetricServiceClient
    clock: ManualClock

    def backlog(self, name: str) -> MonitoringBacklog:
        return MonitoringBacklog(self.client, f"projects/{PROJECT}/subscriptions/{name}", self.clock, TIMEOUT)

    def anew(self) -> "Service":
        """Nothing was sampled, and it is the beginning."""
        self.fake.series.clear()
        self.clock.advance(START - self.clock.now())
        return self


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    clock = ManualClock(START)
    fake = FakeMonitoring(clock.now)
    with served(fake) as address:
        client = monitoring_client(Server(address))
        yield Service(fake, client, clock)
        client.transport.close()


@over_grpc
@given(messages=histories, how=samplings, asked=st.lists(st.integers(0, MINUTES * 60), min_size=1, max_size=6))
def test_a_reading_is_never_newer_than_the_truth(
    service: Service, messages: list[Message], how: list[Sampling], asked: list[int]
) -> None:
    service.anew()
    moments = {START + SAMPLE_PERIOD * number: each for number, each in enumerate(how)}
    for end, each in moments.items():
        sample(service.fake, "base", messages, end, each)
    for second in sorted(asked):
        service.clock.advance(START + timedelta(seconds=second) - service.clock.now())
        try:
            reading = service.backlog("base").read()
        except ReadingUnavailable:
            continue
        end = reading.observed_at + SAMPLE_PERIOD
        sampled_at = end - moments[end].age_before_end
        assert reading.observed_at <= sampled_at <= service.clock.now() - moments[end].visible_after
        assert reading.oldest_unacked <= min(outstanding(messages, sampled_at), default=sampled_at)
        assert all(
            reading.oldest_unacked <= each.published
            for each in messages
            if each.acknowledged > sampled_at or each.published > sampled_at
        )
        assert reading.no_later_than >= min(outstanding(messages, sampled_at), default=sampled_at)
