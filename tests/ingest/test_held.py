"""A backlog of any size is in memory one batch at a time: a batch is let go of before the next is pulled."""

import weakref
from pathlib import Path

import pytest

from tests.ingest.fakes import World, WorldSubscription
from tests.ingest.test_landing import publish
from tests.ingest.test_named_landing import BUDGET, NAME, PiecesWorld
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.ingest import take as taking
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.pubsub.subscription import PulledBatch


def held_at_each_pull(subscription: WorldSubscription, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many earlier batches are still there whenever the subscription is pulled from."""
    pull, held, batches = subscription.pull, list[int](), list[weakref.ref[Messages]]()

    def watched(max_messages: int, max_bytes: int, seconds: float, ahead: int) -> PulledBatch:
        held.append(sum(batch() is not None for batch in batches))
        batch = pull(max_messages, max_bytes, seconds, ahead)
        batches.append(weakref.ref(batch.messages))
        return batch

    monkeypatch.setattr(subscription, "pull", watched)
    return held


@pytest.mark.parametrize("side", Side)
def test_tracking_and_landing_hold_one_batch_each(tmp_path: Path, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.wait(1000)
    publish(world, 12)
    held = held_at_each_pull(world.base if side is Side.BASE else world.tracking, monkeypatch)
    done = world.land(BUDGET) if side is Side.BASE else world.track(BUDGET).persisted
    assert done.messages == 12
    assert held == [0, 0, 0, 0, 0]


def test_landing_under_a_name_holds_one_batch_and_leases_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "FILE_BYTES", 1)
    world = PiecesWorld(tmp_path)
    publish(world, 12)
    held = held_at_each_pull(world.base, monkeypatch)
    assert len(world.land_as(NAME).pieces) == 4
    assert held == [0, 0, 0, 0, 0]
