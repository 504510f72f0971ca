"""What Cloud Monitoring's readings promise, held against the truth of random histories, over real gRPC."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta

from google.cloud.monitoring_v3 import MetricServiceClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, served
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.settings_sections import Server

MINUTES = 15
NEVER = 1 << 40
PATH = f"projects/{PROJECT}/subscriptions/base"


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
def test_a_reading_is_never_newer_than_the_truth(
    messages: list[Message], how: list[Sampling], asked: list[int]
) -> None:
    clock = ManualClock(START)
    fake = FakeMonitoring(clock.now)
    moments = {START + SAMPLE_PERIOD * number: each for number, each in enumerate(how)}
    for end, each in moments.items():  # what the definitions of the two metrics make of the truth
        at = end - each.age_before_end
        age = each.rounding((at - oldest(messages, at)[0]).total_seconds())
        number = oldest(messages, end - each.number_before_end)[1]
        shown = {"age": age, "undelivered": number} | dict.fromkeys([each.gap] if each.gap else [])
        fake.sampled("base", end, visible_after=each.visible_after, **shown)
    with served(fake) as address, closing(monitoring_client(Server(address)).transport) as transport:
        backlog = MonitoringBacklog(MetricServiceClient(transport=transport), PATH, clock, timedelta(seconds=5))
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
