"""Copies on tracking: which are remembered, for how long, and what they hold."""

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.ingest import law
from tests.ingest.fakes import CONTRACT, World
from tests.ingest.judged import counted
from tests.watermark.builders import at, ints, seconds
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.contract.payloads.decoder import DATA_CONTENT_TYPE
from tidemark.pipeline.contract.payloads.schemas import Encoding, Envelope, PayloadFormat
from tidemark.pipeline.ingest.counting import ATTEMPTS_NOTED, RememberedCopies, keys_of
from tidemark.pipeline.quality.lost import audit
from tidemark.pipeline.watermark.histogram import COPY, NO_EVENT, Ints

TEN_MINUTES = timedelta(minutes=10)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.copies = RememberedCopies(TEN_MINUTES)
    return world


def beat(world: World, times: int) -> None:
    """A heartbeat a second, each a second old."""
    for _ in range(times):
        world.wait(1)
        now = (world.clock.now() - at(0)).total_seconds()
        world.topic.publish(now - 1, publisher_id=f"id {now}")


def test_a_copy_a_minute_later_does_not_hold_the_watermark(world: World) -> None:
    beat(world, 30)
    world.tick()
    beat(world, 60)
    world.topic.publish(20.0, publisher_id="id 21.0")  # a copy of the one that was published at 21
    beat(world, 5)
    world.land()
    tracked = world.track()
    assert tracked.decision.watermark > at(80)
    copies = tracked.state.histogram.event_bucket == COPY
    assert tracked.state.histogram.publish_bucket[copies].tolist() == [to_us(at(90)) // 1_000_000]
    assert world.not_landed(world.topic.messages) == []
    world.wait(2)
    world.track()
    found = audit(world.lake())
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (96, 96, 0, 0)


def test_a_heartbeat_whose_first_message_base_rejects_counts_in_full(world: World) -> None:
    beat(world, 30)
    world.topic.publish(20.0, publisher_id="x", payload=b"{")
    world.tick()
    beat(world, 60)
    world.topic.publish(20.0, publisher_id="x")
    world.land()
    assert world.track().decision.candidate <= at(20)


@pytest.mark.parametrize(
    ("payload", "first", "second", "copies"),
    [
        (PayloadFormat(Encoding.AVRO), {law.SCHEMA_REVISION: "r0"}, {law.SCHEMA_REVISION: "r0"}, 1),
        (PayloadFormat(Encoding.AVRO), {law.SCHEMA_REVISION: "r0"}, {law.SCHEMA_REVISION: "r1"}, 0),
        (PayloadFormat(Encoding.JSON, envelope=Envelope.CLOUDEVENTS), {}, {DATA_CONTENT_TYPE: "text/plain"}, 0),
    ],
)
def test_a_message_whose_payload_is_read_in_another_way_is_no_copy(
    world: World, payload: PayloadFormat, first: dict[str, str], second: dict[str, str], copies: int
) -> None:
    """Base may reject the first one, whose revision may not exist, and land the second one."""
    world.reader = HeartbeatReader(replace(CONTRACT, payload=payload), law.Appearing({}))
    world.wait(100)
    attributes = {"event_time": "1795238400000", "stream_id": "a", "heartbeat_id": "x"}
    for named in (first, second):
        world.topic.publish_plain(b"{}", {**attributes, **named})
        world.wait(1)
        tracked = world.track()
    assert np.count_nonzero(tracked.state.histogram.event_bucket == COPY) == copies


def test_a_copy_of_the_same_batch_counts_in_full_and_one_of_a_rejected_message_as_well(world: World) -> None:
    world.wait(100)
    messages = [world.topic.publish(50.0, publisher_id="x") for _ in range(2)]
    broken = world.topic.publish(40.0, publisher_id="y", payload=b"{")
    copies, reader = RememberedCopies(TEN_MINUTES), HeartbeatReader(CONTRACT)
    found = counted([*messages, broken], reader, copies, seconds(10))
    assert found.histogram.event_bucket.tolist().count(NO_EVENT) == 1
    assert COPY not in found.histogram.event_bucket
    copies.settle({copies.note(*found.firsts)})
    again = world.topic.publish(40.0, publisher_id="y")
    assert COPY not in counted([again], reader, copies, seconds(10)).histogram.event_bucket
    assert counted(messages, reader, copies).histogram.event_bucket.tolist() == [COPY]


@pytest.mark.parametrize(("payload", "occupies"), [(b"{", True), (b"[]", True), (b"{}", False), (b"", False)])
def test_a_laggard_that_its_payload_rejects_only_occupies(world: World, payload: bytes, occupies: bool) -> None:
    """Nothing is known of a payload that a transform may have dropped."""
    world.wait(100)
    laggard = world.topic.publish(50.0, payload=payload)
    reader = HeartbeatReader(CONTRACT)
    histogram = counted([laggard], reader, RememberedCopies(), seconds(10)).histogram
    assert histogram.event_bucket.tolist() == [NO_EVENT if occupies else to_us(at(50)) // 1_000_000]
    in_the_band = counted([laggard], reader, RememberedCopies(), seconds(50)).histogram
    bytes_alone = HeartbeatReader(replace(CONTRACT, payload=PayloadFormat(Encoding.NONE)))
    assert in_the_band == counted([laggard], bytes_alone, RememberedCopies(), seconds(10)).histogram
    assert in_the_band.event_bucket.tolist() == [to_us(at(50)) // 1_000_000]


# The memory


def remember(copies: RememberedCopies, keys: Ints, publish_us: Ints) -> None:
    copies.settle({copies.note(keys, publish_us)})


def test_memory_is_bounded_by_publish_time_and_by_count() -> None:
    second, copies = 1_000_000, RememberedCopies(timedelta(seconds=10), at_most=3)
    keys = keys_of("aaaaa", "vwxyz", range(5))
    remember(copies, keys[:3], ints([0, 5 * second, 11 * second]))
    assert copies.are_copies(keys[:3], ints([20 * second] * 3)).tolist() == [False, True, True]
    remember(copies, keys[3:], ints([12 * second, 13 * second]))
    assert copies.are_copies(keys, ints([20 * second] * 5)).tolist() == [False, False, True, True, True]
    off = RememberedCopies(timedelta(0))
    remember(off, keys, ints([0] * 5))
    assert len(off._keys) == 0


# Attempts: only what was settled is remembered, whatever attempts there were

Message = tuple[int, int]
"""A key and a publish time in microseconds."""

messages = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=4)


def note(copies: RememberedCopies, these: list[Message]) -> str:
    return copies.note(ints(key for key, _ in these), ints(publish_us for _, publish_us in these))


def are_copies(remembered: RememberedCopies, one: Message) -> bool:
    keys, publish_us = np.array([one], dtype=np.int64).T
    return bool(remembered.are_copies(keys, publish_us)[0])


@dataclass
class Attempt:
    """An attempt that a process has made. One without messages is not noted."""

    name: str
    messages: list[Message]


class Process(RuleBasedStateMachine):
    """A process that makes attempts, some of which are settled, with others of other processes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = RememberedCopies(TEN_MINUTES)
        self.pending: list[Attempt] = []
        self.durable: dict[int, int] = {}
        self.names: set[str] = set()

    @rule(these=messages)
    def count(self, these: list[Message]) -> None:
        name = note(self.copies, these)
        assert name not in self.names, "two attempts of one name"
        self.names.add(name)
        self.pending += [Attempt(name, these)] if these else []

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Some of the latest attempts are in the log, and it may be said again of older ones."""
        settled = [one for one in self.pending if data.draw(st.booleans())]
        others = data.draw(st.frozensets(st.sampled_from(["of another process", "of nobody", *self.names])))
        told_again = others - {one.name for one in self.pending}
        self.copies.settle(told_again | {one.name for one in settled})
        assert len(self.copies._noted) <= ATTEMPTS_NOTED, "what is never settled does not add up"
        for one in settled:
            self.pending.remove(one)
            for key, publish_us in one.messages:
                self.durable[key] = min(publish_us, self.durable.get(key, publish_us))
        self.pending = self.pending[-ATTEMPTS_NOTED:]

    @invariant()
    def remembers_what_was_settled_and_nothing_else(self) -> None:
        for key in range(10):
            for publish_us in range(6):
                is_known = key in self.durable and self.durable[key] <= publish_us
                assert are_copies(self.copies, (key, publish_us)) == is_known


TestProcess = Process.TestCase
TestProcess.settings = settings(max_examples=40)
