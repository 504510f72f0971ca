"""Cloud Monitoring's ListTimeSeries over real gRPC on loopback, with its delays, gaps and errors.

It keeps the contract: a filter must name one metric type, and is honoured clause by clause; of a series come the
points within the half-open interval that are visible yet, newest first; a series without points is left out; answers
come in pages of so many points, so that one series may go on over several.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.cloud.monitoring_v3.types import ListTimeSeriesRequest, ListTimeSeriesResponse

from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.pubsub.backlog import OLDEST_AGE, UNDELIVERED
from tidemark.pipeline.settings_sections import PubSubSettings, Server

CLAUSE = re.compile(r'([a-z_.]+) = "([^"]*)"')
REQUEST, RESPONSE = ListTimeSeriesRequest.pb(), ListTimeSeriesResponse.pb()
PROJECT = "tidemark-test"
START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
"""When the clocks of these tests begin."""


@dataclass(frozen=True)
class Point:
    """A value and the end of its sample; a float is a value of the wrong type."""

    end: datetime
    value: int | float
    visible_after: timedelta = timedelta(0)


@dataclass
class Series:
    """What one metric of one resource says."""

    metric: str
    subscription: str
    points: list[Point] = field(default_factory=list)
    project: str = PROJECT
    metric_labels: dict[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, str]:
        """What a filter can ask for."""
        return {
            "metric.type": self.metric,
            "resource.type": "pubsub_subscription",
            "resource.labels.project_id": self.project,
            "resource.labels.subscription_id": self.subscription,
            **{f"metric.labels.{name}": value for name, value in self.metric_labels.items()},
        }


class FakeMonitoring:
    """The service. What it holds may be changed between requests; `errors` are answered first, one a request."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.project = PROJECT
        self.series: list[Series] = []
        self.errors: list[grpc.StatusCode] = []
        self.incomplete = ""
        self.page_size = 1000
        self.requests: list[str] = []

    def sampled(
        self,
        subscription: str,
        end: datetime,
        *,
        age: int | float | None = None,
        undelivered: int | float | None = None,
        visible_after: timedelta = timedelta(0),
        project: str = PROJECT,
    ) -> None:
        """One sample of a subscription; None is a gap in that metric."""
        for metric, value in ((OLDEST_AGE, age), (UNDELIVERED, undelivered)):
            if value is not None:
                self._of(metric, subscription, project).points.append(Point(end, value, visible_after))

    def asked_for(self, metric: str) -> int:
        """How many requests named the metric."""
        return sum(metric in request for request in self.requests)

    def _of(self, metric: str, subscription: str, project: str) -> Series:
        for series in self.series:
            if (series.metric, series.subscription, series.project) == (metric, subscription, project):
                return series
        self.series.append(Series(metric, subscription, project=project))
        return self.series[-1]

    def list_time_series(self, request: Any, context: grpc.ServicerContext) -> Any:
        """google.monitoring.v3.MetricService/ListTimeSeries."""
        self.requests.append(request.filter)
        if self.errors:
            context.abort(self.errors.pop(0), "as the test wants it")
        asked = dict(CLAUSE.findall(request.filter))
        if "metric.type" not in asked or not request.HasField("interval"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a metric type and an interval are required")
        since, until = _moment(request.interval.start_time), _moment(request.interval.end_time)
        if since >= until or request.name != f"projects/{self.project}":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an empty interval, or another project")
        rows = [
            (series, point)
            for series in self.series
            if asked.items() <= series.facts.items()
            for point in sorted(series.points, key=lambda point: point.end, reverse=True)
            if since < point.end <= until and point.end + point.visible_after <= self.now()
        ]
        start = int(request.page_token or 0)
        answer = RESPONSE()
        for series, point in rows[start : start + self.page_size]:
            _add(answer, series, point)
        if start + self.page_size < len(rows):
            answer.next_page_token = str(start + self.page_size)
        if self.incomplete:
            answer.execution_errors.add(message=self.incomplete)
        return answer


OF_SETTINGS = PubSubSettings.monitoring


@contextmanager
def served(fake: FakeMonitoring, interceptors: Sequence[grpc.ServerInterceptor] = ()) -> Iterator[str]:
    """The fake behind a gRPC server on loopback; its address."""
    handler = grpc.unary_unary_rpc_method_handler(
        fake.list_time_series, request_deserializer=REQUEST.FromString, response_serializer=RESPONSE.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=4), interceptors=interceptors)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("google.monitoring.v3.MetricService", {"ListTimeSeries": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def _add(answer: Any, series: Series, point: Point) -> None:
    last = answer.time_series[-1] if answer.time_series else None
    labels = {"project_id": series.project, "subscription_id": series.subscription}
    if last is None or last.metric.type != series.metric or dict(last.resource.labels) != labels:
        last = answer.time_series.add()
        last.metric.type = series.metric
        last.metric.labels.update(series.metric_labels)
        last.resource.type = "pubsub_subscription"
        last.resource.labels.update(labels)
    added = last.points.add()
    for moment in (added.interval.start_time, added.interval.end_time):
        moment.FromDatetime(point.end)
    if isinstance(point.value, float):
        added.value.double_value = point.value
    else:
        added.value.int64_value = point.value


def _moment(stamp: Any) -> datetime:
    return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


@contextmanager
def metrics_at(address: str | None) -> Iterator[None]:
    """Have Cloud Monitoring at this address in all settings, those with an emulator too; None: as they say."""
    found = PubSubSettings.monitoring
    there = OF_SETTINGS if address is None else property(lambda _: Server(address))
    PubSubSettings.monitoring = there  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        PubSubSettings.monitoring = found  # type: ignore[method-assign]
