"""The model against brute force, over any order of calls: what must hold whatever happens."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tests.emulator.builders import BASE, DEADLINE, ROUGH, START, TOPIC, a_subscription, a_topic, expiry, plain
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import Refused, Transient
from tidemark.local.emulator.unacknowledged import Delivered

WEEK = timedelta(days=7)


def published(message: Any) -> datetime:
    return message.publish_time.ToDatetime(START.tzinfo)


class WithoutFaults(RuleBasedStateMachine):
    """One subscription, and beside it what it must hold, kept in the simplest way: a set of ids."""

    faults = Faults()
    deliveries: Bundle[Delivered] = Bundle("deliveries")
    snapshots: Bundle[Any] = Bundle("snapshots")

    @initialize(seed=st.integers(0, 1 << 16), retained=st.booleans())
    def begin(self, seed: int, retained: bool) -> None:
        self.now = START
        self.model = PubSubModel(rng=random.Random(seed), faults=self.faults)
        self.model.create_topic(a_topic())
        self.model.create_subscription(a_subscription(retain_acked_messages=retained), START)
        self.retained = retained
        self.times: dict[str, datetime] = {}  # of every message that was published
        self.unacked: set[str] = set()
        self.leased: dict[str, tuple[str, datetime]] = {}  # by whom and until when
        self.held: dict[str, tuple[set[str], set[str]]] = {}  # by snapshot: outstanding then, all published before
        self.names = 0

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for message_id in self.model.publish(TOPIC, [plain("x") for _ in range(count)], self.now):
            self.times[message_id] = self.now
            self.unacked.add(message_id)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 9.5, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(target=deliveries, at_most=st.integers(1, 5))
    def pull(self, at_most: int) -> Any:
        delivered = self.model.pull(BASE, at_most, self.now)
        free = self.unacked - self.leased_now()
        ids = {one.message.message_id for one in delivered}
        assert len(ids) == len(delivered) == min(at_most, len(free))
        assert ids <= free
        for one in delivered:
            assert published(one.message) == self.times[one.message.message_id]
            self.leased[one.message.message_id] = (one.ack_id, self.now + DEADLINE)
        return multiple(*delivered)

    @rule(delivered=consumes(deliveries))
    def acknowledge(self, delivered: Delivered) -> None:
        self.model.acknowledge(BASE, [delivered.ack_id], self.now)
        self.forget(delivered.message.message_id)

    @rule(delivered=deliveries, seconds=st.sampled_from([0, 1, 30]))
    def modify_ack_deadline(self, delivered: Delivered, seconds: int) -> None:
        self.model.modify_ack_deadline(BASE, [delivered.ack_id] * 2, seconds, self.now)
        message_id = delivered.message.message_id
        if message_id in self.leased_now() and self.leased[message_id][0] == delivered.ack_id:
            self.leased[message_id] = (delivered.ack_id, self.now + timedelta(seconds=seconds))

    @rule(target=snapshots)
    def create_snapshot(self) -> Any:
        self.names += 1
        snapshot = self.model.create_snapshot(f"snapshot-{self.names}", BASE, self.now)
        oldest = min((self.times[message_id] for message_id in self.unacked), default=self.now)
        assert expiry(snapshot) == oldest + WEEK
        self.held[snapshot.name] = (set(self.unacked), set(self.times))
        return snapshot

    @rule(snapshot=consumes(snapshots))
    def delete_snapshot(self, snapshot: Any) -> None:
        self.model.delete_snapshot(snapshot.name, self.now)
        assert snapshot not in self.model.list_snapshots(self.now)

    @rule(snapshot=snapshots)
    def seek_to_a_snapshot(self, snapshot: Any) -> None:
        self.model.seek(BASE, snapshot.name, self.now)
        then, before = self.held[snapshot.name]
        self.sought(then | (self.times.keys() - before))

    @rule(seconds=st.sampled_from([-60.0, -3.0, 0.0, 3.0]))
    def seek_to_a_time(self, seconds: float) -> None:
        to = self.now + timedelta(seconds=seconds)
        self.model.seek(BASE, to, self.now)
        there = self.times.keys() if self.retained else self.unacked
        self.sought({message_id for message_id in there if self.times[message_id] >= to})

    def sought(self, unacked: set[str]) -> None:
        for message_id in self.unacked - unacked:
            self.forget(message_id)
        self.unacked = set(unacked)

    def forget(self, message_id: str) -> None:
        self.unacked.discard(message_id)
        self.leased.pop(message_id, None)

    def leased_now(self) -> set[str]:
        return {message_id for message_id, (_, until) in self.leased.items() if until > self.now}

    @invariant()
    def holds_what_is_unacknowledged_and_nothing_else(self) -> None:
        assert {message.message_id for message in self.model.unacknowledged(BASE)} == self.unacked

    @invariant()
    def the_oldest_is_the_smallest_of_all(self) -> None:
        oldest = min((self.times[message_id] for message_id in self.unacked), default=None)
        assert self.model.oldest_unacked(BASE, self.now) == oldest

    def teardown(self) -> None:
        """Whatever happened: what is unacknowledged comes, once, when all leases have ended."""
        if not hasattr(self, "model"):
            return
        self.now += timedelta(minutes=1)
        delivered = self.model.pull(BASE, 1 << 20, self.now)
        assert sorted(one.message.message_id for one in delivered) == sorted(self.unacked)
        self.model.acknowledge(BASE, [one.ack_id for one in delivered], self.now)
        assert self.model.pull(BASE, 1 << 20, self.now + timedelta(days=1)) == []


class Shuffled(WithoutFaults):
    """In any order: the same laws."""

    faults = Faults(shuffled=True)


class WithFaults(RuleBasedStateMachine):
    """All faults at once: nothing that was not acknowledged is lost, and all comes in the end."""

    faults = replace(
        ROUGH,
        **dict.fromkeys(("redelivered", "acknowledgement_lost", "duplicate_delivery"), 0.2),
        **dict.fromkeys(("unavailable", "answer_lost"), 0.1),
        visible_after=timedelta(seconds=5),
        whole_seconds=True,
        stale_reading=0.3,
    )
    deliveries: Bundle[Delivered] = Bundle("deliveries")

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.now = START
        self.model = PubSubModel(rng=random.Random(seed))
        self.model.create_topic(a_topic())
        self.model.create_subscription(a_subscription(), START)
        self.model.faults = self.faults
        self.told: set[str] = set()  # published, and the caller was told so
        self.given_up: set[str] = set()  # an acknowledgement was asked for
        self.newest_truth = START + WEEK
        self.names = 0

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        ids = answered(lambda: self.model.publish(TOPIC, [plain("x") for _ in range(count)], self.now))
        self.told.update(ids or [])

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(target=deliveries, at_most=st.integers(1, 5))
    def pull(self, at_most: int) -> Any:
        delivered = answered(lambda: self.model.pull(BASE, at_most, self.now)) or []
        assert len(delivered) <= at_most
        assert all(published(one.message) <= self.now for one in delivered)
        return multiple(*delivered)

    @rule(delivered=consumes(deliveries))
    def acknowledge(self, delivered: Delivered) -> None:
        self.given_up.add(delivered.message.message_id)
        answered(lambda: self.model.acknowledge(BASE, [delivered.ack_id], self.now))

    @rule()
    def read(self) -> None:
        self.names += 1
        self.newest_truth = max(self.newest_truth, (self.model.oldest_unacked(BASE, self.now) or self.now) + WEEK)
        snapshot = answered(lambda: self.model.create_snapshot(f"snapshot-{self.names}", BASE, self.now))
        if snapshot is not None:  # a stale one was true once
            assert expiry(snapshot) <= self.newest_truth

    @invariant()
    def nothing_is_lost_that_nobody_acknowledged(self) -> None:
        held = {message.message_id for message in self.model.unacknowledged(BASE)}
        assert self.told - self.given_up <= held

    def teardown(self) -> None:
        """Once the faults stop, all that is unacknowledged comes, and then nothing more."""
        if not hasattr(self, "model"):
            return
        self.model.faults = Faults()
        came: set[str] = set()
        for _ in range(20):
            self.now += DEADLINE
            delivered = self.model.pull(BASE, 1 << 20, self.now)
            came.update(one.message.message_id for one in delivered)
            self.model.acknowledge(BASE, [one.ack_id for one in delivered], self.now)
        assert self.told - self.given_up <= came
        assert list(self.model.unacknowledged(BASE)) == []


def answered(call: Any) -> Any:
    """The call's answer, None where a fault has it."""
    try:
        return call()
    except (Transient, Refused):
        return None


TestWithoutFaults = WithoutFaults.TestCase
TestShuffled = Shuffled.TestCase
TestWithFaults = WithFaults.TestCase
TestWithoutFaults.settings = TestShuffled.settings = TestWithFaults.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
