"""What was judged by a contract that another process has replaced meanwhile is not settled, and comes again."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ingest.fakes import AMPLE, World
from tidemark.pipeline.errors import ContractReplaced
from tidemark.pipeline.ingest.outcome import Side, Taken
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import Batches, Landing, Tracking, take
from tidemark.pipeline.ingest.ticks import begin_where_new
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.state import Snapshot

OLD, NEW = "an old contract", "a new contract"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two processes have begun with the old contract, and a message waits on each side, and one to be rejected."""
    world = World(tmp_path)
    begin_where_new(world.log, world.tracking_backlog, world.clock)
    world.topic.publish(1)
    world.topic.publish("yesterday")
    world.log.judge_by(OLD)
    world.log.decide(lambda state: state.decide(None, None, world.policy, world.clock.now()))
    return world


def taken_by_the_old_one(world: World, side: Side) -> Taken:
    subscription = world.tracking if side is Side.TRACKING else world.base
    world.reader.judged_by = OLD
    keeper = Tracking(world.reader, world.copies, None, world.clock)
    landing = Landing(world.heartbeats, world.quarantine, world.reader, lambda: None, world.clock)
    batches = Batches(subscription, AMPLE, world.clock)
    until = world.clock.monotonic() + 60
    return take(batches, subscription, keeper if side is Side.TRACKING else landing, until)


@pytest.mark.parametrize("side", Side)
def test_what_the_replaced_contract_has_judged_comes_again(side: Side, world: World) -> None:
    taken = taken_by_the_old_one(world, side)
    TrackingLog(world.stored(), checkpoint_every=4).judge_by(NEW)
    subscriptions = {Side.TRACKING: world.tracking, Side.BASE: world.base}
    settling = Settling(world.log, world.clock, subscriptions, (world.heartbeats, world.quarantine))
    with pytest.raises(ContractReplaced):
        settling.settle([taken])
    assert len((world.tracking if side is Side.TRACKING else world.base).unacknowledged) == 2
    assert not world.landed_ids()
    assert not world.quarantined_ids()
    log = TrackingLog(world.stored(), checkpoint_every=4)
    assert not any(isinstance(log.entry(number), Snapshot) for number in log.numbers())
    world.wait(2)
    assert taken_by_the_old_one(world, side).ack_ids


@pytest.mark.parametrize("side", Side)
def test_readers_that_judge_by_different_contracts_settle_nothing(side: Side, world: World) -> None:
    taken = taken_by_the_old_one(world, side)
    subscriptions = {Side.TRACKING: world.tracking, Side.BASE: world.base}
    settling = Settling(world.log, world.clock, subscriptions, (world.heartbeats, world.quarantine))
    with pytest.raises(ContractReplaced, match="the same tidemark version"):
        settling.settle([taken, replace(taken, contract=NEW)])
    assert len((world.tracking if side is Side.TRACKING else world.base).unacknowledged) == 2
