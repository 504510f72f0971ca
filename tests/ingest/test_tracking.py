"""One tracking tick: pull, persist, acknowledge, read T, then B, fold, decide; and what becomes of it when it fails."""

from datetime import timedelta
from pathlib import Path

from tests.ingest.fakes import World
from tests.watermark.builders import at
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.watermark.state import DecisionRecord

SMALL = Budget(max_messages=6, max_bytes=1 << 20, max_time=timedelta(seconds=20), batch_messages=3)


def publish(world: World, seconds: int = 20, streams: int = 1) -> None:
    """A heartbeat of each stream a second, each a second old when it is published."""
    for _ in range(seconds):
        world.wait(1)
        now = (world.clock.now() - at(0)).total_seconds()
        for stream in range(streams):
            world.topic.publish(now - 1, stream=f"s{stream}")


def test_the_order_is_pull_persist_acknowledge_read_t_read_b_decide(tmp_path: Path) -> None:
    world = World(tmp_path)
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


# What goes wrong
