"""The throw-away topic and subscriptions of a measurement: made, removed again, and swept after a killed run.

Nothing is made that may not be removed: deleting is tried first, on names that do not exist yet. A later run removes
what a killed one left, by its label, once that is an hour old. Pub/Sub itself deletes the subscriptions after a day.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from google.api_core import exceptions as api

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.doctor.measure.facts import CallFacts
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.connection import ONCE_MORE, reported, retrying
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.settings_types import DAY

LABEL = "tidemark-measure"
"""Its value is when the measurement began, in seconds since the epoch."""

NAME = re.compile(rf"projects/[^/]+/(topics|subscriptions|snapshots)/(tidemark-reading-)?{LABEL}-[0-9a-f]{{12}}.*")

LEFT_AFTER = timedelta(hours=1)
"""No measurement takes so long."""

LEASE, KEPT = timedelta(seconds=10), timedelta(minutes=10)
"""The ack deadline, and how long messages are kept: both the shortest that the service allows."""

NEEDED = {
    "topic": "pubsub.topics.create and pubsub.topics.delete on the project",
    "subscription": "pubsub.subscriptions.create and pubsub.subscriptions.delete on the project, and "
    "pubsub.topics.attachSubscription on the topic",
    "snapshot": "pubsub.snapshots.create and pubsub.snapshots.delete on the project",
}
LIST = "pubsub.topics.list, pubsub.subscriptions.list and pubsub.snapshots.list on the project"


class Timed:
    """A client whose calls are timed, by their names."""

    def __init__(self, client: Any, clock: Clock, seconds: dict[str, list[float]]) -> None:
        self._client, self._clock, self._seconds = client, clock, seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def timed(*args: Any, **named: Any) -> Any:
            began = self._clock.monotonic()
            try:
                return found(*args, **named)
            finally:
                self._seconds.setdefault(name, []).append(self._clock.monotonic() - began)

        return timed


def call_facts(seconds: dict[str, list[float]]) -> dict[str, CallFacts]:
    """The calls that were made, by name."""
    return {
        name: CallFacts(len(took), timedelta(seconds=quantile(took, 0.5)), timedelta(seconds=max(took)))
        for name, took in sorted(seconds.items())
    }


class Place:
    """The names of one measurement, and the requests that make and remove what they name."""

    def __init__(self, publisher: Any, subscriber: Any, settings: PubSubSettings, clock: Clock) -> None:
        self.publisher, self.subscriber, self.settings, self.clock = publisher, subscriber, settings, clock
        self.project = f"projects/{settings.project}"
        self.labels = {LABEL: str(int(clock.now().timestamp()))}
        self._id = f"{LABEL}-{uuid.uuid4().hex[:12]}"
        self.topic = f"{self.project}/topics/{self._id}"
        self._made: list[tuple[str, str]] = []
        self.bounds: dict[str, Any] = {
            "retry": retrying(settings.call_timeout),
            "timeout": settings.call_timeout.total_seconds(),
        }

    def subscribe(self, role: str, **options: Any) -> str:
        """A subscription of the topic, with these options besides, that nothing keeps for longer than a day."""
        path = f"{self.project}/subscriptions/{self._id}-{role}"
        request = {
            "name": path,
            "topic": self.topic,
            "labels": self.labels,
            "ack_deadline_seconds": int(LEASE.total_seconds()),
            "message_retention_duration": KEPT,
            "expiration_policy": {"ttl": DAY},
            **options,
        }
        self._make("subscription", path, lambda: self.subscriber.create_subscription(request=request, **self.bounds))
        return path

    def make_topic(self) -> None:
        """Raises PermissionMissing, and makes nothing, if anything that a measurement makes could not be removed."""
        for kind, path in (
            ("snapshot", f"{self.project}/snapshots/{self._id}"),
            ("subscription", f"{self.project}/subscriptions/{self._id}"),
            ("topic", self.topic),
        ):
            self.delete(kind, path)
        request = {"name": self.topic, "labels": self.labels}
        self._make("topic", self.topic, lambda: self.publisher.create_topic(request=request, **self.bounds))

    def delete(self, kind: str, path: str) -> None:
        """Delete it, if it is there."""
        client = self.publisher if kind == "topic" else self.subscriber
        with reported("delete", path, NEEDED[kind], then=ONCE_MORE), suppress(api.NotFound):
            getattr(client, f"delete_{kind}")(**{kind: path}, **self.bounds)

    def remove(self) -> None:
        """Remove all that was made, the topic last; Ctrl-C does not end it. What cannot be removed is named in the
        error."""
        with ThreadPoolExecutor(1) as pool:
            removing = pool.submit(self._remove)
            while not removing.done():
                with suppress(KeyboardInterrupt):
                    wait([removing])
            removing.result()

    def _remove(self) -> None:
        left: list[str] = []
        problem: PubSubError | None = None
        for kind, path in [*self._snapshots_left(), *reversed(self._made)]:
            try:
                self.delete(kind, path)
            except PubSubError as error:
                problem = error
                left.append(f"gcloud pubsub {kind}s delete {path}")
        if problem is not None:
            raise type(problem)(
                f"{problem}. Delete yourself what the measurement made: `{'; '.join(left)}`. Otherwise Pub/Sub deletes "
                "the subscriptions after a day, and a later `tidemark doctor --measure` the rest"
            ) from problem

    def sweep(self) -> list[str]:
        """Remove what killed measurements left behind, and return the names. Raises PermissionMissing if these
        credentials may not list it."""
        before = self.clock.now() - LEFT_AFTER
        swept = []
        for kind, one in self._all():
            if NAME.fullmatch(one.name) and (began := _began(one.labels.get(LABEL, ""))) is not None and began < before:
                self.delete(kind, one.name)
                swept.append(one.name)
        return swept

    def _all(self) -> Iterator[tuple[str, Any]]:
        with reported("list the topics, subscriptions and snapshots of", self.project, LIST, then=ONCE_MORE):
            for kind, listing in (
                ("snapshot", self.subscriber.list_snapshots),
                ("subscription", self.subscriber.list_subscriptions),
                ("topic", self.publisher.list_topics),
            ):
                yield from ((kind, one) for one in list(listing(project=self.project, **self.bounds)))

    def _snapshots_left(self) -> list[tuple[str, str]]:
        """The snapshots of a reading that was interrupted."""
        with suppress(PubSubError), reported("list the snapshots of", self.project, LIST, then=ONCE_MORE):
            found = self.subscriber.list_snapshots(project=self.project, **self.bounds)
            return [("snapshot", one.name) for one in found if self._id in one.name]
        return []

    def _make(self, kind: str, path: str, create: Callable[[], object]) -> None:
        """Create it. It is removed even if creating it was interrupted, or its answer was lost."""
        self._made.append((kind, path))
        with reported("create", path, NEEDED[kind], then=ONCE_MORE), suppress(api.AlreadyExists):
            create()


@contextmanager
def throw_away(place: Place) -> Iterator[Place]:
    """The place with its topic, until the block is left."""
    try:
        place.make_topic()
        yield place
    finally:
        place.remove()


def swept(place: Place) -> list[str]:
    """What killed measurements left behind and is removed now; nothing where these credentials may not list it."""
    with suppress(PermissionMissing):
        return place.sweep()
    return []


def _began(label: str) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(label), tz=UTC)
    return None
