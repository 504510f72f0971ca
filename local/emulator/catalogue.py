"""Stores topics, subscriptions and schemas by name, and raises the faults that may happen in any call."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.pubsub_v1 import types

from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.filters import parse_filter
from tidemark.local.emulator.refusals import AlreadyExists, DeadlineExceeded, Invalid, NotFound, Throttled, Unavailable
from tidemark.local.emulator.unacknowledged import Unacknowledged
from tidemark.pipeline.clock import to_us

Found = TypeVar("Found")

DELETED_TOPIC = "_deleted-topic_"
"""Google's placeholder for the topic of a subscription whose topic was deleted."""


ENCODINGS = {int(types.Encoding.JSON): "JSON", int(types.Encoding.BINARY): "BINARY"}


Snapshot = tuple[Any, dict[int, Any]]
"""A snapshot, and its messages keyed by number: those unacknowledged when it was taken, and those published since."""


class State:
    """A subscription and its messages. `passes` is its filter, which never changes, or None if every message passes.
    Raises Invalid if the filter cannot be parsed."""

    def __init__(self, config: Any, tag: str, rng: random.Random) -> None:
        self.configure(config)
        self.passes = parse_filter(config.filter) if config.filter else None
        self.tag = tag
        self.outstanding = Unacknowledged(tag, rng)
        self.retained: dict[int, Any] = {}  # acknowledged and kept for a seek, in the order of acknowledgement
        self.readings: list[datetime] = []  # expiry times of the last snapshots

    def passing(self, numbered: Iterable[tuple[int, Any]]) -> dict[int, Any]:
        """Return the numbered messages that pass the filter."""
        passes = self.passes
        return dict(numbered) if passes is None else {n: one for n, one in numbered if passes(one.attributes)}

    def configure(self, config: Any) -> None:
        """Replace the subscription's settings. Its messages stay."""
        self.config = config
        self.ack_deadline = timedelta(seconds=config.ack_deadline_seconds)
        self.retention: timedelta = config.message_retention_duration.ToTimedelta()


class Schemas:
    """Stores schemas by name, each with its revisions in order. Definitions are not parsed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._revisions: dict[str, list[Any]] = {}

    def create(self, name: str, schema: Any, at: datetime) -> Any:
        """Store the first revision of a new schema. Raises AlreadyExists."""
        if name in self._revisions:
            raise AlreadyExists(f"schema {name} exists already")
        self._revisions[name] = []
        return self._add(name, schema, at)

    def commit(self, name: str, schema: Any, at: datetime) -> Any:
        """Add a revision to a schema. Raises NotFound, and Invalid if the type of the revision differs from that of the
        schema."""
        if schema.type_ != self.of(name)[-1].type_:
            raise Invalid(f"a revision of {name} must have the type of its schema")
        return self._add(name, schema, at)

    def of(self, name: str) -> list[Any]:
        """Return all revisions of a schema, oldest first. Raises NotFound."""
        return _found(self._revisions, "schema", name)

    def get(self, name: str) -> Any:
        """Return the newest revision of a schema for `projects/…/schemas/ID`, or one revision for `…/ID@REVISION`.
        Raises NotFound."""
        schema, _, revision = name.partition("@")
        for found in reversed(self.of(schema)):
            if revision in ("", found.revision_id):
                return found
        raise NotFound(f"there is no revision {name}")

    def attributes(self, settings: Any) -> dict[str, str]:
        """Return the attributes that Pub/Sub adds to the messages of a topic with these schema settings. Raises
        NotFound."""
        if not settings.schema:
            return {}
        return {
            "googclient_schemaname": settings.schema,
            "googclient_schemaencoding": ENCODINGS.get(settings.encoding, "BINARY"),
            "googclient_schemarevisionid": self.get(settings.schema).revision_id,
        }

    def _add(self, name: str, schema: Any, at: datetime) -> Any:
        kept = type(schema)()
        kept.CopyFrom(schema)
        kept.name, kept.revision_id = name, f"{self._rng.getrandbits(32):08x}"
        kept.revision_create_time.FromMicroseconds(to_us(at))
        self._revisions[name].append(kept)
        return kept


class Catalogue:
    """Creates, looks up and deletes topics and subscriptions. A name is any text, unique within its kind.

    Topics, subscriptions and snapshots are plain protobufs of `google.pubsub.v1`. `faults` may be replaced at any time.
    Each call may raise a `Transient` error, with the chances in `faults`.
    """

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._rng = rng
        self.schemas = Schemas(rng)
        self._topics: dict[str, Any] = {}
        self._subscriptions: dict[str, State] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._next_tag = 1
        self._newest_publish_us = 0

    def create_topic(self, topic: Any) -> None:
        """Add a topic. Raises AlreadyExists."""
        self._before()
        if topic.name in self._topics:
            raise AlreadyExists(f"topic {topic.name} exists already")
        self._topics[topic.name] = topic
        self._after()

    def get_topic(self, name: str) -> Any:
        """Return a topic. Raises NotFound."""
        self._before()
        return self._topic(name)

    def list_topics(self) -> list[Any]:
        self._before()
        return list(self._topics.values())

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its subscriptions stay, with their messages. Raises NotFound."""
        self._before()
        self._topic(name)
        del self._topics[name]
        for state in self._subscriptions.values():
            if state.config.topic == name:
                state.config.topic = DELETED_TOPIC
        self._after()

    def create_subscription(self, config: Any, at: datetime) -> None:
        """Create a subscription. It receives the messages published after this call, with publish times from `at` on.

        `config` must have an ack deadline and a retention. Raises AlreadyExists, NotFound if the topic does not exist,
        and Invalid if the filter cannot be parsed.
        """
        self._before()
        if config.name in self._subscriptions:
            raise AlreadyExists(f"subscription {config.name} exists already")
        self._topic(config.topic)
        self._subscriptions[config.name] = State(config, f"s{self._next_tag}", self._rng)
        self._next_tag += 1
        self._newest_publish_us = max(self._newest_publish_us, to_us(at))
        self._after()

    def get_subscription(self, name: str) -> Any:
        """Return a subscription's settings. Raises NotFound."""
        self._before()
        return self._state(name).config

    def list_subscriptions(self, topic: str | None = None) -> list[Any]:
        """Return all subscriptions, or only those of a topic. Raises NotFound if the topic does not exist."""
        self._before()
        if topic is not None:
            self._topic(topic)
        return [state.config for state in self._subscriptions.values() if topic in (None, state.config.topic)]

    def update_subscription(self, changed: Any) -> None:
        """Replace a subscription's settings. Its messages stay. Raises NotFound."""
        self._before()
        self._state(changed.name).configure(changed)
        self._after()

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its messages. Its snapshots stay. Raises NotFound."""
        self._before()
        self._state(name)
        del self._subscriptions[name]
        self._after()

    def _topic(self, name: str) -> Any:
        return _found(self._topics, "topic", name)

    def _state(self, name: str) -> State:
        return _found(self._subscriptions, "subscription", name)

    def _snapshot(self, name: str, at: datetime) -> Snapshot:
        self._expire_snapshots(at)
        return _found(self._snapshots, "snapshot", name)

    def _expire_snapshots(self, at: datetime) -> None:
        for snapshot, _ in list(self._snapshots.values()):
            if snapshot.expire_time.ToDatetime(UTC) <= at:
                del self._snapshots[snapshot.name]

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance

    def _before(self) -> None:
        """Decide at random which faults happen before a call has an effect, and raise the error of the first one."""
        if self._happens(self.faults.unavailable):
            raise Unavailable("simulated fault: no answer; the call had no effect")
        if self._happens(self.faults.deadline_exceeded):
            raise DeadlineExceeded("simulated fault: no answer in time; the call had no effect")
        if self._happens(self.faults.throttled):
            raise Throttled("simulated fault: too many requests; the call had no effect")

    def _after(self, also: float = 0.0) -> None:
        """Decide at random whether the answer of a call that took effect is lost, and raise the error if it is. `also`
        is an additional chance of this fault."""
        if self._happens(self.faults.answer_lost) or self._happens(also):
            raise Unavailable("simulated fault: the answer was lost; the call took effect")


def _found(known: dict[str, Found], kind: str, name: str) -> Found:
    if name not in known:
        raise NotFound(f"there is no {kind} {name}")
    return known[name]
