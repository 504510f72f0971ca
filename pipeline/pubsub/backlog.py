"""Reads the publish time of a subscription's oldest unacknowledged message: from a snapshot, or from Cloud Monitoring's
metrics, which are minutes old.

Pub/Sub has no call that returns this time. But a new snapshot expires seven days after the publish time of its oldest
message, or after its own creation if it contains no message. So tidemark creates a snapshot, computes the publish time
from the expiry time, and deletes the snapshot. Source: the API reference of `Snapshot.expire_time`.

Google's list of metrics describes `subscription/oldest_unacked_message_age` and `subscription/num_undelivered_messages`
as GAUGE, INT64, sampled every 60 seconds, and visible within 120 seconds after sampling. Pub/Sub's guides say that
metrics may have gaps, and that an absent metric does not mean that there are no messages.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline import errors
from tidemark.pipeline.clock import Clock, format_duration, from_us, rough, to_us
from tidemark.pipeline.pubsub.connection import ONE_TRY, Resources, client_of, reported
from tidemark.pipeline.settings_sections import Server
from tidemark.pipeline.watermark.readings import Reading

if TYPE_CHECKING:
    from google.cloud.monitoring_v3 import MetricServiceClient

logger = logging.getLogger(__name__)

LIFETIME = timedelta(days=7)
"""Time from the publish time of a snapshot's oldest message until the snapshot expires."""

REFUSED_WITHIN = timedelta(hours=1)
"""Pub/Sub refuses to create a snapshot that would expire within this time. So if it refuses, the oldest message is
older than `LIFETIME - REFUSED_WITHIN`."""

A_MESSAGE = timedelta(seconds=1)
"""If the oldest time in an answer is earlier than the reading's `observed_at` by more than this, that time is the
publish time of a message. A later time may be the creation time of an empty snapshot."""

NAME_PREFIX = "tidemark-reading-"
READING = {"tidemark": "reading"}

CREATE = "pubsub.snapshots.create on the project and pubsub.subscriptions.consume on the subscription"

STEADY = 0.999
"""Minimum number of real seconds that pass per second of the monotonic clock, whose rate is off by at most 0.0005. More
real time may pass, because the monotonic clock stops while the machine is suspended."""


class ReadingTimes:
    """Determines when a reading was observed: by this machine's clock or, if the server's clock is known to be ahead,
    by the server's clock.

    Each answer contains a time that the server's clock had reached. That time, plus the time that the monotonic clock
    has counted since, is a lower bound of the server's current time. With this bound, a reading does not look older
    than it is if the local clock is behind or was set back.

    Both subscriptions share an instance, and tracking is read first. So the server's clock had reached tracking's
    reading `T` before base's snapshot was created. If base's reading is earlier than `T` by more than `A_MESSAGE`, it
    is therefore not the creation time of an empty snapshot, but the publish time of a message.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server: tuple[datetime, float] | None = None

    def ask(self) -> tuple[datetime, float]:
        """Return the current time and the monotonic clock's value. Call it before each request."""
        return self._clock.now(), self._clock.monotonic()

    def reading(self, asked: tuple[datetime, float], oldest: datetime) -> Reading:
        """Return the reading for an answer that has just arrived. `asked` is what `ask` returned before the request,
        and `oldest` the time that the answer gives for the oldest message."""
        (asked_at, since), (answered_at, until) = asked, self.ask()
        observed_at = max(asked_at, oldest - timedelta(seconds=until - since), self._server_at(since) or asked_at)
        known = self._server_at(until)
        if known is None or oldest > known:
            self._server = (oldest, until)
        names_a_message = oldest < observed_at - A_MESSAGE
        return Reading(observed_at, oldest, names_a_message, answered_at=answered_at)

    def _server_at(self, monotonic: float) -> datetime | None:
        """Return a lower bound of the server's time at a value of the monotonic clock; None before the first
        reading."""
        if self._server is None:
            return None
        moment, then = self._server
        return moment + timedelta(seconds=max(monotonic - then, 0) * STEADY)


class Backlog(Protocol):
    """Reads the publish time of the oldest unacknowledged message of one subscription."""

    def read(self) -> Reading:
        """Return a reading. Raises ReadingUnavailable if no reading is possible now, and other PubSubErrors."""


class SnapshotBacklog:
    """Reads a subscription's backlog from snapshots. The readings are as precise as the server's expiry times: to
    a millisecond on the official emulator."""

    def __init__(
        self, client: SubscriberClient, subscription_path: str, times: ReadingTimes, labels: Mapping[str, str] = READING
    ) -> None:
        self._client, self._server = client, Resources(client, look=True)
        self._labels = labels
        self._subscription = subscription_path
        self._times = times
        _, project, _, name = subscription_path.split("/")
        self._project = f"projects/{project}"
        self._prefix = f"{self._project}/snapshots/{NAME_PREFIX}{name[:150]}-"

    def read(self) -> Reading:
        """Take a snapshot, read its expiry time, and delete the snapshot.

        Raises SnapshotRefused if Pub/Sub refuses the snapshot, usually because the oldest message is almost 7 days old.
        """
        asked = self._times.ask()
        name = self._prefix + uuid.uuid4().hex
        request = {"name": name, "subscription": self._subscription, "labels": self._labels}
        with reported("take a snapshot of", self._subscription, CREATE):
            try:
                snapshot = self._client.create_snapshot(request=request, **ONE_TRY)
            except api.FailedPrecondition as error:
                raise errors.SnapshotRefused(
                    f"Pub/Sub refuses a snapshot of {self._subscription}: {error.message}. If no other cause is named, "
                    "the subscription's oldest message is almost 7 days old, which is the limit for snapshots. The "
                    "watermark holds until that message has landed"
                ) from error
        # A plain datetime, not the client's subclass.
        reading = self._times.reading(asked, from_us(to_us(snapshot.expire_time)) - LIFETIME)
        self._delete(name)
        return reading

    def names(self) -> list[str]:
        """Return the names of all snapshots of the subscription's project."""
        return [snapshot.name for snapshot in self._server.listed("snapshot", self._project)]

    def sweep(self, names: Iterable[str]) -> int:
        """Delete the snapshots among `names` that earlier readings of this subscription left behind, and return their
        number."""
        named = (name.rpartition("-") for name in names)  # another subscription's may begin alike: orders-eu
        leaked = ["".join(parts) for parts in named if "".join(parts[:2]) == self._prefix]
        for name in leaked:
            self._delete(name)
        return len(leaked)

    def _delete(self, name: str) -> None:
        """Delete a snapshot. A failure is only logged, because the reading is valid. `sweep` deletes the snapshot
        later."""
        try:
            self._server.delete("snapshot", name, "pubsub.snapshots.delete on it")
        except errors.PubSubError as error:
            logger.warning("a reading's snapshot was not deleted; the next tick deletes it: %s", error)


OLDEST_AGE = "pubsub.googleapis.com/subscription/oldest_unacked_message_age"
UNDELIVERED = "pubsub.googleapis.com/subscription/num_undelivered_messages"
SOUGHT = "pubsub.googleapis.com/subscription/seek_request_count"
DEAD_LETTERED = "pubsub.googleapis.com/subscription/dead_letter_message_count"
"""Names of the metrics of Cloud Monitoring that tidemark reads, from OLDEST_AGE to DEAD_LETTERED. SOUGHT and
DEAD_LETTERED count the events since the previous point (DELTA, INT64). Google counts each result, such as a response
code, in its own time series."""

TAKEN_AWAY: Mapping[str, str] = {
    SOUGHT: "was sought in the last {within} (seeks: {number}): messages skipped by a seek or purge were not read, and "
    "the watermark passes them",
    DEAD_LETTERED: "moved messages to its dead-letter topic in the last {within} ({number}): base's reader did not "
    "acknowledge these messages, and the watermark passes them",
}
"""Sentences about messages that left a subscription unread, by the metric that counts them."""

SAMPLE_PERIOD = timedelta(seconds=60)
"""Assumption: a metric's point that ends at `e` was sampled in `[e - SAMPLE_PERIOD, e]`. The documentation gives each
point of a gauge a single time, but does not say that this is the time of sampling."""

ROUNDING = timedelta(seconds=1)
"""Maximum rounding error of an age in whole seconds."""

LOOK_BACK = timedelta(minutes=10)
"""Metric points older than this are ignored. Without gaps, the newest point is at most three minutes old."""

OLDEST_POSSIBLE = timedelta(days=366)
"""A value of the metric OLDEST_AGE is ignored as invalid if it reaches this. Real values are far smaller, because a
subscription keeps a message for at most 31 days."""

GAP = timedelta(minutes=5)
"""A reading from the metrics is overdue once it is older than this. If it is overdue by more than `max_reading_age`,
the watermark is held. Without gaps in the metrics, a reading is up to four minutes old."""

MAX_PAGES = 20
"""Maximum number of pages per answer of Cloud Monitoring. The requested points fit on one page."""

SEE_METRICS = (
    "monitoring.timeSeries.list on the project (roles/monitoring.viewer), or read by snapshots alone with "
    'pubsub.reading = "snapshot"'
)


def monitoring_client(server: Server) -> "MetricServiceClient":
    """Create a client for Cloud Monitoring. Raises PermissionMissing without credentials."""
    from google.cloud.monitoring_v3 import MetricServiceClient  # takes 0.2 s, and only some settings need it

    return client_of(MetricServiceClient, *server)


def request_of(
    project: str, metric: str, resource: str, since: datetime, until: datetime, **labels: str
) -> dict[str, Any]:
    """Return the request for a metric's points in `(since, until]`. It selects the project's resources of the type
    `resource` with these labels."""
    # A metrics scope also has other projects' resources, perhaps of the same name.
    wanted = {"project_id": project, **labels}
    of = " AND ".join(f'resource.labels.{name} = "{value}"' for name, value in wanted.items())
    return {
        "name": f"projects/{project}",
        "filter": f'metric.type = "{metric}" AND resource.type = "{resource}" AND {of}',
        "interval": {"start_time": since, "end_time": until},
    }


def reading_of(sampled_by: datetime, age_seconds: int) -> Reading:
    """Return the reading for a point of the metric OLDEST_AGE.

    The point says: at some moment `s` in the minute before `sampled_by`, the oldest unacknowledged message was
    `age_seconds` old, to within a second. If nothing was unacknowledged, the age is 0.

    Guarantees, also for the age 0:
    - Each message that was unacknowledged at `s`, or published since, has a publish time of at least `oldest_unacked`.
    - `observed_at` is not after `s`.
    - The oldest message, if any, was not published after `no_later_than`.

    The reading has `names_a_message=False`, because the exact second is unknown.
    """
    observed_at = sampled_by - SAMPLE_PERIOD
    return Reading(
        observed_at=observed_at,
        oldest_unacked=observed_at - timedelta(seconds=age_seconds) - ROUNDING,
        names_a_message=False,
        uncertainty=SAMPLE_PERIOD + 2 * ROUNDING,
        source="monitoring",
        next_within=GAP,
    )


class MonitoringBacklog:
    """Reads a subscription's backlog from Cloud Monitoring. A reading is two to four minutes old, or older if the
    metrics have a gap. Its `observed_at` is the earliest moment at which the sample may have been taken.

    An unknown backlog never counts as empty. Reading raises ReadingUnavailable in these cases:
    - Cloud Monitoring does not answer, or its answer is incomplete.
    - There is no series, or no valid point within `LOOK_BACK`.

    An age of 0 may be an error of the metric. It is used only if the number of messages was sampled less than
    SAMPLE_PERIOD before or after the age, and is 0 in all such samples.
    """

    def __init__(self, client: "MetricServiceClient", subscription_path: str, clock: Clock) -> None:
        self._client = client
        self._subscription = subscription_path
        self._clock = clock
        _, self._project, _, self._name = subscription_path.split("/")

    def read(self) -> Reading:
        """Return the newest reliable point as a reading. Raises ReadingUnavailable if there is none or Cloud Monitoring
        does not answer, and PermissionMissing or PubSubError for errors that a retry does not fix."""
        possible = OLDEST_POSSIBLE.total_seconds()
        ages = {end: age for end, age in self._points(OLDEST_AGE).items() if age < possible}
        numbers: dict[datetime, int] | None = None
        for end in sorted(ages, reverse=True):
            if ages[end] == 0:
                numbers = self._points(UNDELIVERED) if numbers is None else numbers
                near = [number for sampled_by, number in numbers.items() if abs(sampled_by - end) < SAMPLE_PERIOD]
                if not near or any(near):
                    continue
            return reading_of(end, ages[end])
        raise errors.ReadingUnavailable(
            f"Cloud Monitoring has no point of {OLDEST_AGE} for {self._subscription} in the last "
            f"{format_duration(LOOK_BACK)}{', except zeros, which the message counts contradict' if ages else ''}"
            "; this does not mean an empty backlog. Wait: a new subscription has no point for some minutes, and gaps "
            "in the metrics are temporary"
        )

    def taken_away(self) -> Iterator[str]:
        """Yield a sentence for each kind of message that left the subscription unread in the last ten minutes (see
        TAKEN_AWAY). Yields nothing if Cloud Monitoring cannot be read."""
        with suppress(errors.PubSubError):
            for metric, text in TAKEN_AWAY.items():
                if number := sum(value for _, _, value in self._values(metric)):
                    yield f"{self._subscription} {text.format(within=rough(LOOK_BACK), number=number)}"

    def _points(self, metric: str) -> dict[datetime, int]:
        """Return a metric's valid values within `LOOK_BACK`, keyed by the end of the sample. If a sample has two
        values, the larger is returned. It is the safe choice: it never makes the oldest message look newer, or the
        backlog empty. Raises ReadingUnavailable if the metric has several series, and the errors of `read`."""
        points: dict[datetime, int] = {}
        kinds = set()
        for kind, end, value in self._values(metric):
            kinds.add(kind)
            points[end] = max(points.get(end, 0), value)
        if len(kinds) > 1:
            raise errors.ReadingUnavailable(
                f"Cloud Monitoring has {len(kinds)} series of {metric} for {self._subscription}; tidemark expects "
                'one, and uses none of these. If this lasts, set pubsub.reading = "snapshot"'
            )
        return points

    def _values(self, metric: str) -> Iterator[tuple[object, datetime, int]]:
        until = self._clock.now()
        since = until - LOOK_BACK
        request = request_of(self._project, metric, "pubsub_subscription", since, until, subscription_id=self._name)
        for series in self._series(request):
            labels = dict(series.resource.labels)
            if series.metric.type != metric or labels.get("subscription_id") != self._name:
                continue
            kind = (tuple(sorted(labels.items())), tuple(sorted(series.metric.labels.items())))
            for point in series.points:
                end, value = point.interval.end_time.ToDatetime(UTC), point.value
                if since < end <= until and value.WhichOneof("value") == "int64_value" and value.int64_value >= 0:
                    yield kind, end, value.int64_value

    def _series(self, request: dict[str, Any]) -> list[Any]:
        try:
            with reported("read the metrics of", self._subscription, SEE_METRICS, "Cloud Monitoring"):
                pager = self._client.list_time_series(request=request, **ONE_TRY)
                pages = [type(page).pb(page) for page in islice(pager.pages, MAX_PAGES + 1)]
        except (errors.PubSubUnreachable, errors.SubscriptionMissing) as error:  # a transient error
            raise errors.ReadingUnavailable(
                f"Cloud Monitoring gave no answer about the backlog of {self._subscription}: {error.__cause__}; the "
                "next tick asks again"
            ) from error
        wrong = [f"may be incomplete ({page.execution_errors[0].message})" for page in pages if page.execution_errors]
        wrong += [f"has more than {MAX_PAGES} pages"] * (len(pages) > MAX_PAGES)
        if wrong:
            raise errors.ReadingUnavailable(
                f"Cloud Monitoring's answer about {self._subscription} {wrong[0]}, and is not used; the next tick asks "
                "again"
            )
        return [series for page in pages for series in page.time_series]
