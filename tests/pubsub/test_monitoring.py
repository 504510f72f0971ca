"""Readings by Cloud Monitoring, against a server on loopback that has its delays, gaps and errors."""

from datetime import datetime, timedelta

import grpc
import pytest
from google.cloud.monitoring_v3 import MetricServiceClient

from tests.clock import ManualClock
from tests.pubsub.fake_monitoring import PROJECT, START, FakeMonitoring, Series
from tidemark.pipeline.errors import PermissionMissing, ReadingUnavailable
from tidemark.pipeline.pubsub.backlog import LOOK_BACK, MAX_PAGES, OLDEST_AGE, MonitoringBacklog

BASE = "heartbeats-base"
PATH = f"projects/{PROJECT}/subscriptions/{BASE}"
TIMEOUT = timedelta(seconds=5)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def at(count: float) -> datetime:
    return START + seconds(count)


@pytest.fixture
def backlog(monitoring: MetricServiceClient, clock: ManualClock) -> MonitoringBacklog:
    return MonitoringBacklog(monitoring, PATH, clock, TIMEOUT)


def test_after_a_gap_the_last_point_holds_until_it_is_too_old(
    fake: FakeMonitoring, backlog: MonitoringBacklog, clock: ManualClock
) -> None:
    fake.sampled(BASE, at(0), age=5)
    clock.advance(LOOK_BACK - seconds(1))
    assert backlog.read().observed_at == at(-60)
    clock.advance(seconds(1))
    with pytest.raises(ReadingUnavailable):
        backlog.read()


@pytest.mark.parametrize("undelivered", [None, 1, 5_000_000])
def test_a_zero_age_is_not_believed_where_the_number_is_not_known_to_be_zero(
    fake: FakeMonitoring, backlog: MonitoringBacklog, undelivered: int | None
) -> None:
    fake.sampled(BASE, at(-60), age=0, undelivered=undelivered)
    with pytest.raises(ReadingUnavailable, match="zeros that the number of messages contradicts"):
        backlog.read()
    fake.sampled(BASE, at(-120), age=42, undelivered=9)
    assert backlog.read().observed_at == at(-180)


def test_the_number_of_a_neighbouring_sample_bears_out_a_zero_only_if_all_of_them_do(
    fake: FakeMonitoring, backlog: MonitoringBacklog
) -> None:
    fake.sampled(BASE, at(-60), age=0)
    fake.sampled(BASE, at(-75), undelivered=0)
    assert backlog.read().observed_at == at(-120)
    fake.sampled(BASE, at(-15), undelivered=3)
    with pytest.raises(ReadingUnavailable):
        backlog.read()


@pytest.mark.parametrize("value", [float("nan"), 12.5, -1, 400 * 86400, 1 << 62])
def test_a_value_that_is_no_age_in_whole_seconds_is_no_value(
    fake: FakeMonitoring, backlog: MonitoringBacklog, value: float
) -> None:
    fake.sampled(BASE, at(-60), age=value, undelivered=0)  # consistent with an age of zero
    with pytest.raises(ReadingUnavailable):
        backlog.read()
    fake.sampled(BASE, at(-120), age=30)
    assert backlog.read().observed_at == at(-180)


PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "NOT_FOUND")
"""The last is of the metric's descriptor, where nothing was ever written."""


def test_an_error_means_that_the_backlog_is_unknown_now_or_that_a_permission_is_missing(
    fake: FakeMonitoring, backlog: MonitoringBacklog
) -> None:
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


def test_other_subscriptions_and_other_projects_of_the_metrics_scope_do_not_mix_in(
    fake: FakeMonitoring, backlog: MonitoringBacklog
) -> None:
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
