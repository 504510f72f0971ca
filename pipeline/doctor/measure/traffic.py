"""The throw-away topic and subscriptions of a measurement, and the traffic on them.

A measurement first tries to delete resources that do not exist. If it lacks a permission for this, it creates
nothing, because it could not clean up later. If a measurement is killed, a later one finds the leftovers by their
label, and removes them once they are an hour old. Pub/Sub itself deletes the subscriptions after a day.
"""

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
from google.pubsub_v1 import PublishRequest

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import PermissionMissing, PubSubError, PubSubUnreachable
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import ONCE_MORE, Resources, reported
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS, Pulls
from tidemark.pipeline.pubsub.sampling import LEASE, short_lived
from tidemark.pipeline.pubsub.subscription import CONSUME
from tidemark.pipeline.settings_sections import PubSubSettings

LABEL = "tidemark-measure"
"""The label of all resources that a measurement creates. The label's value is the start of the measurement, in seconds
since the epoch."""

NAME = re.compile(rf"projects/[^/]+/(topics|subscriptions|snapshots)/(tidemark-reading-)?{LABEL}-[0-9a-f]{{12}}.*")

LEFT_AFTER = timedelta(hours=1)
"""Age at which a labelled resource counts as a leftover. No measurement takes this long."""

NEEDED = {
    "snapshot": "pubsub.snapshots.create and pubsub.snapshots.delete on the project",
    "subscription": "pubsub.subscriptions.create and pubsub.subscriptions.delete on the project, and "
    "pubsub.topics.attachSubscription on the topic",
    "topic": "pubsub.topics.create and pubsub.topics.delete on the project",
}
"""The permissions needed for each kind of resource. Leftovers are removed in the order of these kinds."""


class Timed:
    """Wraps a client, and records the duration of each call in seconds, keyed by the call's name."""

    def __init__(self, client: Any, clock: Clock, seconds: defaultdict[str, list[float]]) -> None:
        self._client, self._clock, self._seconds = client, clock, seconds

    def __getattr__(self, name: str) -> Any:
        if not callable(found := getattr(self._client, name)):
            return found

        def timed(*args: Any, **named: Any) -> Any:
            began = self._clock.monotonic()
            try:
                return found(*args, **named)
            finally:
                self._seconds[name].append(self._clock.monotonic() - began)

        return timed


REQUEST_COUNTS_AS = 1000
"""Minimum number of bytes charged per publish request, and per pull that returns messages."""

PUBLISH = "pubsub.topics.publish on the project"
LOOK_AGAIN = 0.1
TRIES = 5
"""Maximum number of attempts per reading or pull. An attempt is repeated only if Pub/Sub did not answer."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Plan:
    """The size and the time limits of a measurement. `patience` is the maximum wait for an expected event, such as the
    arrival of a message."""

    messages: int = 3000
    over: timedelta = timedelta(seconds=20)
    rounds: int = 20
    snapshots_within: timedelta = timedelta(seconds=45)
    patience: timedelta = timedelta(seconds=20)
    quiet: timedelta = timedelta(seconds=2)
    monitoring_within: timedelta = timedelta(minutes=6)


PLAN = Plan()
"""The plan of `tidemark doctor --measure`."""


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery of a message, with the monotonic time of its receipt."""

    message_id: str
    publish_time: datetime
    ordering_key: str | None
    attributes: Mapping[str, str]
    payload: bytes
    ack_id: str
    at: float


class ThrowAwayTopic:
    """The throw-away topic and subscriptions of one measurement, and the traffic on them. `seconds` contains the
    durations of all calls, keyed by the call's name. `charged_bytes` is the number of bytes that Pub/Sub charges
    according to its price list."""

    def __init__(self, publisher: Any, subscriber: Any, settings: PubSubSettings, clock: Clock, plan: Plan) -> None:
        self._settings, self._clock, self._plan = settings, clock, plan
        self.seconds = defaultdict[str, list[float]](list)
        self.charged_bytes = 0
        self._publisher, self._subscriber = self._timed(publisher), self._timed(subscriber)
        self._resources = Resources(self._subscriber, self._publisher)
        self._labels = {LABEL: str(int(clock.now().timestamp()))}
        self._id = f"{LABEL}-{uuid.uuid4().hex[:12]}"
        self._project = f"projects/{settings.project}"
        self._topic = self._path("topic")
        self._made: list[tuple[str, str]] = []
        self._pulls: dict[str, Pulls] = {}
        self._sent: set[str] = set()
        self._acknowledged = defaultdict[str, set[str]](set)

    def make_topic(self) -> None:
        """Create the topic, if this process's credentials can also remove it, its subscriptions and its snapshots.
        Otherwise, create nothing and raise PermissionMissing."""
        for kind in NEEDED:
            self._resources.delete(kind, self._path(kind), NEEDED[kind])
        self._make("topic", {"name": self._topic})

    def subscribe(self, role: str, **options: Any) -> str:
        """Create a subscription to the topic, with `options` in the request, and return its path. Pub/Sub deletes the
        subscription after a day without use."""
        path = self._path("subscription", f"-{role}")
        self._make("subscription", {**short_lived(path, self._topic), **options})
        return path

    def close(self) -> None:
        """Stop pulling, and remove all resources that were created, the topic last. Ctrl-C does not interrupt the
        removal. Raises PubSubError, naming the resources, if some could not be removed."""
        try:
            for pulls in self._pulls.values():
                pulls.close()
        finally:
            with ThreadPoolExecutor(1) as pool:
                removing = pool.submit(self._remove)
                while not removing.done():
                    with suppress(KeyboardInterrupt):
                        wait([removing])
                removing.result()

    def sweep(self) -> list[str]:
        """Remove leftovers of killed measurements, and return their names. Does nothing if this process's credentials
        lack a permission to list resources."""
        before = (self._clock.now() - LEFT_AFTER).timestamp()
        swept = []
        with suppress(PermissionMissing):
            found = [(kind, one) for kind in NEEDED for one in self._resources.listed(kind, self._project)]
            for kind, one in found:
                began = one.labels.get(LABEL, "")
                if NAME.fullmatch(one.name) and began.isdecimal() and int(began) < before:
                    self._resources.delete(kind, one.name, NEEDED[kind])
                    swept.append(one.name)
        return swept

    def _timed(self, client: Any) -> Any:
        return Timed(client, self._clock, self.seconds)

    def _remove(self) -> None:
        with suppress(PubSubError):  # the snapshots of a reading that was interrupted
            snapshots = self._resources.listed("snapshot", self._project)
            self._made += [("snapshot", one.name) for one in snapshots if self._id in one.name]
        left: list[str] = []
        problem: PubSubError | None = None
        for kind, path in reversed(self._made):
            try:
                self._resources.delete(kind, path, NEEDED[kind])
            except PubSubError as error:
                problem = error
                left.append(f"gcloud pubsub {kind}s delete {path}")
        if problem is not None:
            raise type(problem)(
                f"{problem}. Delete what the measurement created: `{'; '.join(left)}`. Otherwise Pub/Sub deletes "
                "the subscriptions after a day, and a later `tidemark doctor --measure` deletes the rest"
            ) from problem

    def _path(self, kind: str, role: str = "") -> str:
        return f"{self._project}/{kind}s/{self._id}{role}"

    def _make(self, kind: str, request: dict[str, Any]) -> None:
        """Create a resource. Its path is recorded before the request, so that the resource is removed even if the
        request is interrupted or its response is lost."""
        self._made.append((kind, request["name"]))
        self._resources.create(kind, {**request, "labels": self._labels}, NEEDED[kind])

    def _publish(self, *messages: dict[str, Any]) -> list[str]:
        request = PublishRequest(topic=self._topic, messages=messages)
        self.charged_bytes += max(REQUEST_COUNTS_AS, PublishRequest.pb(request).ByteSize())
        with reported("publish to", self._topic, PUBLISH, then=ONCE_MORE):
            ids = list(self._publisher.publish(request=request, **self._resources.bounds).message_ids)
        self._sent.update(ids)
        return ids

    def _received(self, path: str, seconds: float) -> list[Received]:
        if path not in self._pulls:
            self._pulls[path] = Pulls(
                self._subscriber, path, self._clock, self._settings, lease=LEASE, keeps=True, on_call=lambda: None
            )

        def pulled() -> tuple[pa.Table, int]:
            with reported("pull from", path, CONSUME, then=ONCE_MORE):
                return self._pulls[path].take(1000, seconds)

        table, size = self._tried(pulled)
        at = self._clock.monotonic()
        self.charged_bytes += max(REQUEST_COUNTS_AS, size) if len(table) else 0
        return [Received(**row, at=at) for row in table.to_pylist(maps_as_pydicts="strict")]

    def _take(self, path: str, wanted: Collection[str], within: timedelta | None = None) -> dict[str, Received]:
        until = self._clock.monotonic() + (within or self._plan.patience).total_seconds()
        found: dict[str, Received] = {}
        while not found.keys() >= set(wanted) and (left := until - self._clock.monotonic()) > 0:
            found |= {one.message_id: one for one in self._received(path, min(left, 1.0))}
        return found

    def _drain(self, path: str) -> bool:
        wanted = self._sent - self._acknowledged[path]
        found = self._take(path, wanted)
        self._acknowledge(path, found.values())
        return found.keys() >= wanted

    def _acknowledge(self, path: str, received: Collection[Received]) -> None:
        if received:
            request = {"subscription": path, "ack_ids": [one.ack_id for one in received]}
            with reported("acknowledge on", path, CONSUME, then=ONCE_MORE):
                self._subscriber.acknowledge(request=request, **self._resources.bounds)
            self._acknowledged[path].update(one.message_id for one in received)

    def _acknowledge_again(self, path: str) -> int:
        """Pull briefly, and acknowledge again any messages that are redelivered after their acknowledgement. Returns
        their number. A snapshot shows such a message as outstanding until it is acknowledged again."""
        again = [one for one in self._received(path, LOOK_AGAIN) if one.message_id in self._acknowledged[path]]
        self._acknowledge(path, again)
        return len(again)

    def _give_back(self, path: str, one: Received) -> None:
        request = {"subscription": path, "ack_ids": [one.ack_id], "ack_deadline_seconds": GIVEN_BACK_SECONDS}
        with reported("give back a message of", path, CONSUME, then=ONCE_MORE):
            self._subscriber.modify_ack_deadline(request=request, **self._resources.bounds)

    def _oldest(self, path: str) -> datetime:
        """Take a snapshot to read the publish time of the oldest unacknowledged message, as the pipeline does. The
        snapshot has the measurement's label."""
        reads = SnapshotBacklog(self._subscriber, path, ReadingTimes(self._clock), self._labels)
        return self._tried(reads.read).oldest_unacked

    def _tried(self, ask: Callable[[], Answer]) -> Answer:
        for _ in range(TRIES - 1):
            with suppress(PubSubUnreachable):
                return ask()
            self._clock.sleep(LOOK_AGAIN)
        return ask()
