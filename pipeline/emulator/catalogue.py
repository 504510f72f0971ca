"""Topics and subscriptions by name, and the faults that may strike any call."""

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pipeline.clock import to_us
from pipeline.emulator.faults import Faults
from pipeline.emulator.refusals import AlreadyExists, DeadlineExceeded, NotFound, Throttled, Unavailable
from pipeline.emulator.snapshots import Journal, Snapshot
from pipeline.emulator.unacknowledged import Outstanding

Found = TypeVar("Found")

RETENTION = timedelta(days=7)
"""How long a subscription keeps an unacknowledged message by default."""

DELETED_TOPIC = "_deleted-topic_"
"""The service's name for the topic of a subscription whose topic was deleted."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription's settings. `config` is the caller's own."""

    name: str
    topic: str
    ack_deadline: timedelta
    retention: timedelta = RETENTION
    retain_acked_messages: bool = False
    config: Any = None


class State:
    """A subscription with its messages."""

    def __init__(self, told: Subscription, tag: str, rng: random.Random) -> None:
        self.told = told
        self.tag = tag
        self.outstanding = Outstanding(tag, rng)
        self.retained: dict[int, Any] = {}  # acknowledged and kept for a seek, in the order of acknowledgement
        self.readings: list[datetime] = []  # when the last snapshots expired


class Catalogue:
    """Creates, looks up and deletes topics and subscriptions. A name is any text, unique among its kind.

    `faults` may be replaced at any time. Every call may raise the `Transient` errors that they ask for.
    """

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._rng = rng
        self._topics: dict[str, Any] = {}
        self._subscriptions: dict[str, State] = {}
        self._snapshots: dict[str, tuple[Snapshot, Journal]] = {}
        self._next_tag = 1
        self._newest_publish_us = 0

    def create_topic(self, name: str, config: Any = None) -> None:
        """Create a topic. Raises AlreadyExists."""
        self._before()
        if name in self._topics:
            raise AlreadyExists(f"topic {name} exists already")
        self._topics[name] = config
        self._after()

    def get_topic(self, name: str) -> Any:
        """A topic's config, as it was created with. Raises NotFound."""
        self._before()
        return self._topic(name)

    def list_topics(self) -> dict[str, Any]:
        """The config of each topic, by name."""
        self._before()
        return dict(self._topics)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its subscriptions stay, with their messages. Raises NotFound."""
        self._before()
        self._topic(name)
        del self._topics[name]
        for state in self._subscriptions.values():
            if state.told.topic == name:
                state.told = replace(state.told, topic=DELETED_TOPIC)
        self._after()

    def create_subscription(self, told: Subscription, at: datetime) -> None:
        """Create a subscription. It gets what is published from now on, with publish times of at least `at`.

        Raises AlreadyExists, NotFound (the topic).
        """
        self._before()
        if told.name in self._subscriptions:
            raise AlreadyExists(f"subscription {told.name} exists already")
        self._topic(told.topic)
        self._subscriptions[told.name] = State(told, f"s{self._next_tag}", self._rng)
        self._next_tag += 1
        self._newest_publish_us = max(self._newest_publish_us, to_us(at))
        self._after()

    def get_subscription(self, name: str) -> Subscription:
        """A subscription's settings. Raises NotFound."""
        self._before()
        return self._state(name).told

    def list_subscriptions(self, topic: str | None = None) -> list[Subscription]:
        """All subscriptions, or those of a topic. Raises NotFound for that topic."""
        self._before()
        if topic is not None:
            self._topic(topic)
        return [state.told for state in self._subscriptions.values() if topic in (None, state.told.topic)]

    def update_subscription(self, changed: Subscription) -> None:
        """Replace the settings of the subscription of that name; its messages stay. Raises NotFound."""
        self._before()
        self._state(changed.name).told = changed
        self._after()

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription with its messages; its snapshots stay. Raises NotFound."""
        self._before()
        self._state(name)
        del self._subscriptions[name]
        self._after()

    def _topic(self, name: str) -> Any:
        return _found(self._topics, "topic", name)

    def _state(self, name: str) -> State:
        return _found(self._subscriptions, "subscription", name)

    def _snapshot(self, name: str, at: datetime) -> tuple[Snapshot, Journal]:
        self._expire_snapshots(at)
        return _found(self._snapshots, "snapshot", name)

    def _expire_snapshots(self, at: datetime) -> None:
        for name in [name for name, (snapshot, _) in self._snapshots.items() if snapshot.expire_time <= at]:
            del self._snapshots[name]

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance

    def _before(self) -> None:
        """Raise the faults that strike before a call has done anything."""
        faults = self.faults
        if self._happens(faults.unavailable):
            raise Unavailable("no answer (a fault); nothing was done")
        if self._happens(faults.deadline_exceeded):
            raise DeadlineExceeded("no answer in time (a fault); nothing was done")
        if self._happens(faults.throttled):
            raise Throttled("too many requests (a fault); nothing was done")

    def _after(self, also: float = 0.0) -> None:
        """Raise the faults that lose the answer of a call that has done its work."""
        if self._happens(self.faults.answer_lost) or self._happens(also):
            raise Unavailable("the answer was lost (a fault); it took effect")


def _found(known: dict[str, Found], kind: str, name: str) -> Found:
    if name not in known:
        raise NotFound(f"there is no {kind} {name}")
    return known[name]
