"""One landing tick: pull, sort out, make durable, acknowledge; and what becomes of it when it fails."""

from pathlib import Path

import pytest

from tests.ingest.fakes import World
from tidemark.pipeline.errors import CorruptObject, LakeFull
from tidemark.pipeline.lake.log.tracking_log import entry_name


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Some minutes after the start, so that event times can be long ago."""
    world = World(tmp_path)
    world.wait(1000)
    return world


def publish(world: World, count: int, first: float = 900) -> None:
    for number in range(count):
        world.topic.publish(first + number)


# What goes wrong


@pytest.mark.parametrize("table", ["heartbeats", "quarantine"])
@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
def test_a_table_that_fails_has_nothing_acknowledged_until_it_works(world: World, table: str, landed: bool) -> None:
    publish(world, 5)
    world.topic.publish("yesterday")
    failing = world.heartbeats if table == "heartbeats" else world.quarantine
    (failing.after if landed else failing.before).append(LakeFull("no space is left"))
    with pytest.raises(LakeFull):
        world.land()
    assert world.steps.of_kind("acknowledge") == []
    assert len(world.base.unacknowledged) == 6
    world.wait(60)
    assert world.land().messages == 6
    assert world.base.unacknowledged == []
    assert set(world.landed_ids()) == {"1", "2", "3", "4", "5"}
    assert set(world.quarantined_ids()) == {"6"}
    twice = table == "heartbeats" and landed  # at least once: the micro-batch drops the copies
    assert len(world.landed_ids()) == (10 if twice else 5)


def test_once_the_log_has_lost_its_end_nothing_is_pulled(world: World) -> None:
    publish(world, 3)
    world.track()
    world.land()
    world.steps.taken.clear()
    (world.folder / entry_name(2)).unlink()
    with pytest.raises(CorruptObject, match="its end is lost"):
        world.land()
    assert world.steps.taken == []
