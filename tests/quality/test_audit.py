"""Loss outside of the pipeline: what is called lost for certain is lost, and no more is lost than is said."""

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import hypothesis
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.fakes import AMPLE, CONTRACT, World, published_at
from tests.pubsub.builders import subscription_of
from tests.watermark.builders import at, bounded, seconds
from tidemark.local.emulator.faults import Faults
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.quality.audit import Audit, audit
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.policy import Policy


@pytest.fixture(autouse=True, scope="module")
def _unsynced() -> Iterator[None]:
    """Nothing here is about a machine that loses its power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.pipeline.lake.tables.commit_sync.CommitSync._sync", lambda *_: None)
        yield


def audited(world: World, since: datetime | None = None) -> Audit:
    lake = world.lake()
    return audit(lake.tracking_log(), lake.heartbeats(), lake.quarantine(), since)


def test_landed_messages_are_not_lost_even_if_delivered_twice_or_rejected(tmp_path: Path) -> None:
    world = World(tmp_path, redelivered=0.5)
    for number in range(6):
        world.topic.publish(float(number))
        world.topic.publish("yesterday")
        world.topic.publish(float(number), payload=b"not json")
        world.wait(1)
    for _ in range(4):
        world.tick()
    world.track()
    found = audited(world)
    assert (found.landed, found.at_least) == (18, 0)
    assert found.tracked >= 18
    assert found.before is not None
    assert found.before > at(6)


def test_a_second_without_any_landed_message_is_a_certain_loss(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wait(5)
    first, second = world.topic.publish(1.0), world.topic.publish(2.0)
    world.wait(2)
    world.topic.publish(3.0)
    for message in (first, second):
        world.base.taken_by_somebody_else(message)
    world.tick()
    world.wait(2)
    world.track()
    found = audited(world)
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (3, 1, 2, 2)
    (minute,) = found.minutes
    assert (minute.minute, minute.tracked, minute.at_least) == (at(0), 3, 2)


def test_beside_one_that_landed_in_its_publish_second_another_event_second_tells(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wait(5)
    lost = world.topic.publish(1.0)
    world.topic.publish(2.0)
    world.base.taken_by_somebody_else(lost)
    world.tick()
    world.wait(2)
    world.track()
    assert (audited(world).at_least, audited(world).at_most) == (1, 1)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize("apart", [-3600.0, 2405.0], ids=["an hour before", "a clock that is ahead, clamped"])
def test_what_an_hour_with_a_damaged_file_may_hold_is_neither_lost_nor_landed(
    tmp_path: Path, *, is_gone: bool, apart: float
) -> None:
    world = World(tmp_path)
    world.wait(2390)
    lost = [world.topic.publish(2386.0), world.topic.publish(apart)]
    world.topic.publish(2387.0)
    world.topic.publish(apart + 1)
    for message in lost:
        world.base.taken_by_somebody_else(message)
    world.tick()
    world.wait(2)
    world.track()
    assert audited(world).at_most == 2
    hour = world.lake().heartbeats().files_between(at(apart), at(apart + 2)).paths
    (file,) = (Path(path) for path in hour)
    file.write_bytes(file.read_bytes()[:-40])
    if is_gone:
        file.unlink()
    found = audited(world)
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (2, 1, 1, 1)
    assert list(found.damaged.items()) == [(f"{file.parent.name}/{file.name}", file.parent.name.partition("=")[2])]


def test_a_rejected_message_may_have_landed_in_a_damaged_file_of_its_second(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wait(5)
    world.topic.publish(2.0)
    world.base.taken_by_somebody_else(world.topic.publish("yesterday"))
    world.tick()
    world.wait(2)
    world.track()
    assert (audited(world).at_least, audited(world).at_most) == (0, 1)
    (file,) = (Path(path) for path in world.lake().heartbeats().files_between(at(0), at(9)).paths)
    file.write_bytes(b"")
    assert (audited(world).at_least, audited(world).at_most) == (0, 1)


def test_in_a_cell_that_something_filled_a_loss_is_possible_and_not_certain(tmp_path: Path) -> None:
    world = World(tmp_path)
    lost = world.topic.publish(1.0)
    world.topic.publish(1.5)
    world.base.taken_by_somebody_else(lost)
    world.tick()
    world.wait(2)
    world.track()
    found = audited(world)
    assert (found.at_least, found.at_most) == (0, 1)


def test_messages_that_base_has_not_passed_are_outstanding_and_not_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.topic.publish(1.0)
    for _ in range(3):
        world.wait(1)
        world.track()
    found = audited(world)
    assert (found.tracked, list(found.minutes)) == (0, [])
    assert audited(World(tmp_path / "empty")) == Audit()


def test_a_loss_that_base_passed_before_the_moment_asked_for_is_left_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.base.taken_by_somebody_else(world.topic.publish(1.0))
    world.wait(2)
    for _ in range(8):  # with a compacted entry in between, from which what was pruned is gone
        world.topic.publish(3.0)
        world.wait(1)
        world.tick()
    middle = world.clock.now()
    world.base.taken_by_somebody_else(world.topic.publish(9.0))
    for _ in range(8):
        world.wait(1)
        world.tick()
    assert audited(world).at_least == 2
    assert audited(world, middle).at_least == 1
    assert audited(world, world.clock.now()).at_least == 0


@pytest.mark.parametrize("written_by", ["a clock that runs fast", "a log from before the clamp"])
def test_a_landed_message_that_happens_after_its_publish_time_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_by: str
) -> None:
    if written_by == "a log from before the clamp":
        monkeypatch.setattr("tidemark.pipeline.watermark.histogram.clamped", lambda event_us, _publish_us: event_us)
        monkeypatch.setattr(World, "not_tracked", lambda *_: [])
    world = World(tmp_path)
    world.topic.publish(60.0)
    world.tick()
    world.wait(2)
    world.track()
    found = audited(world)
    assert (found.tracked, found.landed, found.at_least, found.at_most) == (1, 1, 0, 0)


message = st.tuples(
    st.integers(0, 3), st.integers(0, 2), st.booleans(), st.sampled_from(["good", "no time", "no json"])
)


@hypothesis.settings(bounded, max_examples=15)
@given(st.lists(message, min_size=1, max_size=12), st.integers(0, 1000))
def test_the_truth_is_between_what_is_certain_and_what_is_possible(
    messages: list[tuple[int, int, bool, str]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), seed=seed, redelivered=0.3)
        lost = []
        for wait, event, is_lost, kind in messages:
            event_time = "yesterday" if kind == "untimed" else event / 2
            published = world.topic.publish(event_time, payload=b"{" if kind == "no json" else None)
            if is_lost:
                world.base.taken_by_somebody_else(published)
                lost.append(published)
            world.wait(wait / 2)
            if seed % 3 == 0:
                world.tick()
        world.model.faults = Faults()  # or what was taken away might come again
        for _ in range(3):
            world.tick()
        landed = {*world.landed_ids(), *world.quarantined_ids()}
        found = audited(world)
        assert found.before is not None
        truth = [one for one in lost if one.message_id not in landed and published_at(one) < found.before]
        assert found.at_least <= len(truth) <= found.at_most


def test_a_seek_forward_of_base_on_a_server_is_found(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> None:
    clock = SystemClock()
    provision(subscriber, publisher, fresh_pubsub, CONTRACT, clock)
    lake = Lake(LakeSettings(uri=f"file:{tmp_path}"), CONTRACT.fields, clock)

    def publish(count: int) -> None:
        messages = [
            {"data": b"{}", "attributes": {"stream_id": "s", "event_time": str(to_us(clock.now()) // 1000 - 5000 * n)}}
            for n in range(count)
        ]
        publisher.publish(topic=fresh_pubsub.topic_path, messages=messages)

    def tick() -> None:
        tracking, base = (
            SnapshotBacklog(subscriber, path, clock, seconds(10))
            for path in (fresh_pubsub.tracking_path, fresh_pubsub.base_path)
        )
        track(
            subscription_of(subscriber, fresh_pubsub, fresh_pubsub.tracking_path),
            tracking_backlog=tracking,
            base_backlog=base,
            log=lake.tracking_log(),
            reader=HeartbeatReader(CONTRACT),
            policy=Policy(),
            budget=AMPLE,
            clock=clock,
        )

    publish(7)
    clock.sleep(1)
    tick()
    subscriber.seek(
        request={"subscription": fresh_pubsub.base_path, "time": clock.now() + timedelta(seconds=1)}, timeout=10
    )
    clock.sleep(2)
    publish(3)
    heartbeats, quarantine = new_files(lake, clock)
    land(
        subscription_of(subscriber, fresh_pubsub, fresh_pubsub.base_path),
        heartbeats=heartbeats,
        quarantine=quarantine,
        log=lake.tracking_log(),
        reader=HeartbeatReader(CONTRACT),
        budget=AMPLE,
        clock=clock,
    )
    clock.sleep(1)
    tick()
    found = audit(lake.tracking_log(), lake.heartbeats(), lake.quarantine())
    assert (found.at_least, found.at_most, found.landed) == (7, 7, 3)
