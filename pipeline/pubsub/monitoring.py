"""The second reading: what is outstanding, as Cloud Monitoring's metrics of the subscription tell it, minutes later.

Google's list of metrics says of `subscription/oldest_unacked_message_age` and `subscription/num_undelivered_messages`
that they are GAUGE, INT64, sampled every 60 seconds, and not visible for up to 120 seconds after sampling; Pub/Sub's
guides to them, that there may be gaps, and that the absence of a metric does not mean that there are no messages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import grpc
from google.api_core import exceptions as api
from google.auth.exceptions import GoogleAuthError
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport

from pipeline.clock import EPOCH, Clock
from pipeline.durations import format_duration
from pipeline.errors import PermissionMissing, PubSubError, ReadingUnavailable
from pipeline.pubsub.connection import TRANSIENT, credentials_needed
from pipeline.watermark.readings import Reading

OLDEST_AGE = "pubsub.googleapis.com/subscription/oldest_unacked_message_age"
UNDELIVERED = "pubsub.googleapis.com/subscription/num_undelivered_messages"

SAMPLE_PERIOD = timedelta(seconds=60)
"""A point that ends at `e` was sampled at some moment of `[e - SAMPLE_PERIOD, e]`. Assumed: a gauge's point is said to
be of one moment, but not that the moment is the sampler's own."""

ROUNDING = timedelta(seconds=1)
"""An age is a whole number of seconds, less than this from the exact one, whichever way it was rounded."""

LOOK_BACK = timedelta(minutes=10)
"""What is older says nothing any more; points are three minutes old at most, gaps apart."""

OLDEST_POSSIBLE = timedelta(days=366)
"""No subscription keeps a message for so long: 31 days at most."""

MAX_PAGES = 20
"""Of one answer, whose points would fit into one."""

LIST = "monitoring.timeSeries.list on the project (roles/monitoring.viewer)"


@dataclass(frozen=True, slots=True)
class Undelivered:
    """How many messages a subscription had not acknowledged, and the end of the sample that says so."""

    messages: int
    sampled_by: datetime


def monitoring_client(endpoint: str | None) -> MetricServiceClient:
    """A client for the service, or for a server at `endpoint` (host:port) that needs neither TLS nor credentials.
    Raises PermissionMissing without credentials for the service."""
    if endpoint is not None:
        return MetricServiceClient(transport=MetricServiceGrpcTransport(channel=grpc.insecure_channel(endpoint)))
    with credentials_needed():
        return MetricServiceClient()


def reading_of(sampled_by: datetime, age_seconds: int) -> Reading:
    """The reading that a point says: at some moment `s` of the minute before its end, the oldest message outstanding
    was `age_seconds` old, give or take a second, and so published after `s - age - 1 s`.

    Guarantee: what was outstanding at `s`, and what was published since, has no publish time below `oldest_unacked`;
    `observed_at` is not after `s`; the oldest message, if any, was not published after `no_later_than`. It holds with
    nothing outstanding as well, where the age is 0. It names no message: the second is not known.
    """
    observed_at = sampled_by - SAMPLE_PERIOD
    return Reading(
        observed_at=observed_at,
        oldest_unacked=observed_at - timedelta(seconds=age_seconds) - ROUNDING,
        names_a_message=False,
        uncertainty=SAMPLE_PERIOD + 2 * ROUNDING,
        source="monitoring",
    )


class MonitoringBacklog:
    """Readings from the two metrics. Two to four minutes old by nature, and a minute careful besides.

    What is not known is never zero: no series, no point within `LOOK_BACK`, a point that is no whole number, an answer
    that says it is incomplete, none at all: ReadingUnavailable. An age of 0 counts only where the number of messages
    says none as well, since a zero is what a fault would look like.
    """

    def __init__(self, client: MetricServiceClient, subscription_path: str, clock: Clock, timeout: timedelta) -> None:
        self._client = client
        self._subscription = subscription_path
        self._clock = clock
        self._timeout = timeout.total_seconds()
        _, self._project, _, self._name = subscription_path.split("/")

    def read(self) -> Reading:
        """The newest point that can be relied on, as a reading. Raises ReadingUnavailable where there is none or the
        service does not answer, PermissionMissing and PubSubError for what lasts."""
        possible = OLDEST_POSSIBLE.total_seconds()
        ages = {end: age for end, age in self._points(OLDEST_AGE).items() if age < possible}
        numbers: dict[datetime, int] | None = None
        for end in sorted(ages, reverse=True):
            if ages[end] == 0:
                numbers = self._points(UNDELIVERED) if numbers is None else numbers
                if not _says_none(numbers, end):
                    continue
            return reading_of(end, ages[end])
        raise ReadingUnavailable(
            f"Cloud Monitoring has no point of {OLDEST_AGE} for {self._subscription} in the last "
            f"{format_duration(LOOK_BACK)}{', but zeros that the number of messages does not bear out' if ages else ''}"
            "; that is no empty backlog. A new subscription has none for some minutes, and gaps pass by themselves"
        )

    def undelivered(self) -> Undelivered:
        """The newest number of messages. Raises as `read` does."""
        numbers = self._points(UNDELIVERED)
        if not numbers:
            raise ReadingUnavailable(
                f"Cloud Monitoring has no point of {UNDELIVERED} for {self._subscription} in the last "
                f"{format_duration(LOOK_BACK)}: how many messages it holds is not known"
            )
        newest = max(numbers)
        return Undelivered(numbers[newest], newest)

    def _points(self, metric: str) -> dict[datetime, int]:
        """The values within `LOOK_BACK` by the end of their sample. Values that cannot be are left out; of two for one
        sample the larger is taken, which is the careful one of both metrics."""
        until = self._clock.now()
        since = until - LOOK_BACK
        request = {
            "name": f"projects/{self._project}",
            # A metrics scope shows other projects' subscriptions as well, of the same name perhaps.
            "filter": (
                f'metric.type = "{metric}" AND resource.type = "pubsub_subscription" AND '
                f'resource.labels.project_id = "{self._project}" AND resource.labels.subscription_id = "{self._name}"'
            ),
            "interval": {"start_time": since, "end_time": until},
        }
        points: dict[datetime, int] = {}
        kinds = set()
        for series in self._series(request):
            labels = dict(series.resource.labels)
            if series.metric.type != metric or labels.get("subscription_id") != self._name:
                continue
            kinds.add((tuple(sorted(labels.items())), tuple(sorted(series.metric.labels.items()))))
            for point in series.points:
                end, value = _moment(point.interval.end_time), point.value
                if since < end <= until and value.WhichOneof("value") == "int64_value" and value.int64_value >= 0:
                    points[end] = max(points.get(end, 0), value.int64_value)
        if len(kinds) > 1:
            raise ReadingUnavailable(
                f"Cloud Monitoring has {len(kinds)} series of {metric} for {self._subscription}, one was expected: "
                "which of them is meant is not known"
            )
        return points

    def _series(self, request: dict[str, Any]) -> Iterator[Any]:
        """The series of all pages, as plain protobuf; one series may go on over several."""
        with self._asked():
            pager = self._client.list_time_series(request=request, retry=None, timeout=self._timeout)
            for number, page in enumerate(pager.pages, start=1):
                answer = type(page).pb(page)
                if answer.execution_errors:
                    raise ReadingUnavailable(
                        f"Cloud Monitoring's answer about {self._subscription} may be incomplete: "
                        f"{answer.execution_errors[0].message}"
                    )
                if number > MAX_PAGES:
                    raise ReadingUnavailable(
                        f"Cloud Monitoring's answer about {self._subscription} has more than {MAX_PAGES} pages"
                    )
                yield from answer.time_series

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """What the client raises as one of tidemark's errors: what passes means that nothing is known now."""
        try:
            yield
        except (api.PermissionDenied, api.Unauthorized, api.Unauthenticated) as error:
            raise PermissionMissing(
                f"these credentials may not read the metrics of {self._subscription}: grant {LIST}, or read by "
                f'snapshots alone with pubsub.reading = "snapshot" ({error.message})'
            ) from error
        except (*TRANSIENT, api.RetryError, api.NotFound) as error:
            raise ReadingUnavailable(
                f"Cloud Monitoring does not tell what {self._subscription} has outstanding: {error}; the next tick "
                "asks again"
            ) from error
        except api.GoogleAPICallError as error:
            raise PubSubError(f"Cloud Monitoring refused to tell of {self._subscription}: {error}") from error
        except GoogleAuthError as error:
            raise PermissionMissing(f"the credentials for Cloud Monitoring were refused: {error}") from error


def _says_none(numbers: dict[datetime, int], end: datetime) -> bool:
    """Whether the number of messages, in the samples of less than a period around `end`, is known and zero."""
    near = [number for sampled_by, number in numbers.items() if abs(sampled_by - end) < SAMPLE_PERIOD]
    return bool(near) and not any(near)


def _moment(stamp: Any) -> datetime:
    """A protobuf timestamp, to the microsecond below."""
    return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
