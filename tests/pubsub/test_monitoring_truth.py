"""What Cloud Monitoring's readings promise, held against the truth of random histories, over real gRPC."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, served
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.settings_sections import Server
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Snapshot, WatermarkState

NEVER = datetime.max.replace(tzinfo=UTC)
MINUTES = 15
TIMEOUT = timedelta(seconds=5)
TICK = timedelta(seconds=10)


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


@pytest.mark.parametrize("seed", range(4))
def test_a_watermark_on_these_readings_alone_advances_and_stays_below_what_is_still_to_land(
    service: Service, seed: int
) -> None:
    service.anew()
    chance = random.Random(seed)
    published = [START + timedelta(seconds=second) for second in range(40 * 60)]
    event_us = [to_us(each) - chance.randrange(8_000_000) for each in published]
    tracked = [Message(each, each + timedelta(seconds=chance.uniform(0, 8))) for each in published]
    outage, its_end = START + timedelta(minutes=12), START + timedelta(minutes=18)  # of landing

    def landed(each: datetime) -> datetime:
        at = each + timedelta(seconds=chance.uniform(0, 40))
        return at if at < outage or each > its_end else max(at, its_end + timedelta(seconds=chance.uniform(0, 60)))

    base = [Message(each, landed(each)) for each in published]
    policy = Policy(max_reading_age=timedelta(minutes=8), reading_slack=timedelta(seconds=1))
    state = WatermarkState().after(0, Beginning(complete_from=START - timedelta(minutes=1)))
    watermarks: list[datetime | None] = []
    reasons: set[Reason] = set()
    sampled, folded, now = START, START, START
    while now < published[-1]:
        now += TICK
        service.clock.advance(now - service.clock.now())
        while sampled <= now:
            for name, messages in (("tracking", tracked), ("base", base)):
                how = Sampling(
                    age_before_end=timedelta(seconds=chance.uniform(0, 60)),
                    number_before_end=timedelta(seconds=chance.uniform(0, 60)),
                    rounding=chance.choice(["down", "up", "near"]),
                    visible_after=timedelta(seconds=chance.uniform(60, 120)),
                    gap="age" if chance.random() < 0.1 else "",
                )
                sample(service.fake, name, messages, sampled, how)
            sampled += SAMPLE_PERIOD
        new = [index for index, each in enumerate(tracked) if folded < each.acknowledged <= now]
        folded = now
        state = state.after(state.number + 1, Snapshot(histogram(published, event_us, new)))
        decided = state.decide(read(service, "base"), read(service, "tracking"), policy, now)
        state = state.after(state.number + 1, decided)
        watermark = state.watermark
        watermarks.append(watermark)
        reasons.add(decided.decision.reason)
        to_land = min(
            (event for event, each in zip(event_us, base, strict=True) if each.acknowledged > now), default=None
        )
        assert watermark is None or to_land is None or to_us(watermark) <= to_land
    known = [watermark for watermark in watermarks if watermark is not None]
    assert len(set(known)) > 20
    assert timedelta(minutes=1) < now - known[-1] < timedelta(minutes=6)  # behind by minutes, as its readings are
    assert Reason.HELD_SEEK not in reasons
    assert state.decision is not None
    assert state.decision.base is not None
    assert state.decision.base.newest.source == "monitoring"


def read(service: Service, name: str) -> Reading | None:
    """As a tick reads."""
    try:
        return service.backlog(name).read()
    except ReadingUnavailable:
        return None


def histogram(published: list[datetime], event_us: list[int], indices: list[int]) -> Histogram:
    return Histogram.of(
        np.array([to_us(published[index]) for index in indices], dtype=np.int64),
        np.array([event_us[index] for index in indices], dtype=np.int64),
        np.array([], dtype=np.int64),
    )
