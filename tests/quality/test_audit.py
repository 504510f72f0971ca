"""Loss outside of the pipeline: what is called lost for certain is lost, and no more is lost than is said."""

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.fakes import World, published_at
from tests.watermark.builders import at, bounded
from tidemark.local.emulator.faults import Faults
from tidemark.pipeline.quality.lost import Audit, audit


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
