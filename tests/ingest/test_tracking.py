"""One tracking tick: pull, persist, acknowledge, read T, then B, fold, decide; and what becomes of it when it fails."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.ingest.fakes import Crash, World
from tests.watermark.builders import at
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord

SMALL = Budget(max_messages=6, max_bytes=1 << 20, max_time=timedelta(seconds=20), batch_messages=3)
STEPS_AT_MOST = 60


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def publish(world: World, seconds: int = 20, streams: int = 1) -> None:
    """A heartbeat of each stream a second, each a second old when it is published."""
    for _ in range(seconds):
        world.wait(1)
        now = (world.clock.now() - at(0)).total_seconds()
        for stream in range(streams):
            world.topic.publish(now - 1, stream=f"s{stream}")


def test_the_order_is_pull_persist_acknowledge_read_t_read_b_decide(world: World) -> None:
    publish(world, 3)
    world.track()
    world.restart()
    publish(world, 6)
    tracked = world.track(SMALL)
    entry = ["create tracking/log", "created tracking/log", "create log_witness", "created log_witness"]
    batch = ["pull tracking", "pulled tracking", *entry, "acknowledge tracking", "acknowledged tracking"]
    assert [step.split("/0")[0] for step in world.steps.taken] == [
        *batch,
        *batch,
        "read tracking",
        "has read tracking",
        "read base",
        "has read base",
        *entry,  # the decision
        *entry,  # and, after so many entries, a checkpoint
    ]
    assert (tracked.persisted.messages, tracked.persisted.snapshots, tracked.persisted.acknowledged.count) == (6, 2, 6)
    assert isinstance(world.log.entry(5), DecisionRecord)


def test_the_first_tick_writes_its_beginning_before_anything_is_pulled(world: World) -> None:
    world.wait(100)
    publish(world, 5)
    world.track()
    steps = world.steps.taken
    assert steps[:4] == ["read tracking", "has read tracking", f"create {entry_name(0)}", f"created {entry_name(0)}"]
    assert next(step for step in steps[4:] if "log_witness" not in step) == "pull tracking"
    assert world.log.entry(0) == Beginning(at(101))  # the oldest message that tracking held then
    publish(world, 5)
    world.track()
    assert [number for number in world.log.numbers() if isinstance(world.log.entry(number), Beginning)] == [0]


def test_a_message_that_is_outstanding_on_base_is_known_because_tracking_is_read_first(world: World) -> None:
    """A message that comes between the two readings is above T and cannot be missing from the histogram."""
    publish(world, 30)
    world.tick()
    read = world.base_backlog.read

    def something_is_published_first() -> object:
        world.topic.publish(1.5)
        return read()

    world.base_backlog.read = something_is_published_first  # type: ignore[method-assign, assignment]
    tracked = world.track()
    decision = tracked.decision
    assert decision.base is not None
    assert decision.tracking is not None
    assert decision.base.newest.observed_at > decision.tracking.newest.observed_at
    assert decision.complete_from == at(1)  # no hole was found


# What goes wrong


def test_a_crash_at_any_step_loses_nothing_and_never_moves_the_watermark_back(tmp_path: Path) -> None:
    """The process ends before or after each thing that it does outside; the fakes fail what acknowledges too early."""
    crashed: list[str] = []
    for step in range(1, STEPS_AT_MOST):
        world = World(tmp_path / str(step), seed=step, redelivered=0.1)
        publish(world, 14)
        world.tick()
        marks = [world.log.catch_up().watermark]
        world.restart()
        publish(world, 14)
        world.topic.publish("yesterday")
        world.steps.dies_at = step
        try:
            world.tick()
            break  # it has fewer steps than that: each of them was tried
        except Crash:
            crashed.append(world.steps.taken[-1].split("/")[0])
        world.restart()
        marks.append(world.log.catch_up().watermark)
        for number in range(3):
            world.wait(70)  # the leases of the dead process end
            marks.append(world.track().decision.watermark)
            world.land()
            if number and not world.tracking.unacknowledged and not world.base.unacknowledged:
                break
        marks.append(world.track().decision.watermark)
        known = [mark for mark in marks if mark is not None]
        assert known == sorted(known), f"step {step}"
        assert known[-1] > at(27), f"step {step}"  # it goes on, and everything is behind it
        assert world.not_tracked(world.topic.messages) == [], f"step {step}"
        assert world.not_landed(world.topic.messages) == [], f"step {step}"
        assert (world.tracking.unacknowledged, world.base.unacknowledged) == ([], []), f"step {step}"
    assert len(crashed) == len(world.steps.taken)
    assert {"pulled tracking", "created tracking", "acknowledged base", "appended quarantine"} <= set(crashed)
