"""One landing tick: pull, sort out, make durable, acknowledge; and what becomes of it when it fails."""

from pathlib import Path

import pytest

from tests.ingest.fakes import World, to_written
from tests.watermark.builders import at
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


def test_the_order_is_pull_append_acknowledge(world: World) -> None:
    publish(world, 5)
    world.topic.publish("yesterday")
    landed = world.land()
    assert world.steps.taken == [
        "pull base",
        "pulled base",
        "append quarantine",
        "appended quarantine",
        "append heartbeats",
        "appended heartbeats",
        "acknowledge base",
        "acknowledged base",
        "pull base",
        "pulled base",  # and there was nothing more
    ]
    assert (landed.messages, landed.heartbeats, landed.acknowledged.count) == (6, 5, 6)


def test_a_heartbeat_lands_whole_with_its_fields_beside_the_payload(world: World) -> None:
    world.topic.publish(900.5, stream="s", payload={"load": 2, "other": [1]}, publisher_id="p1")
    landed = world.land()
    (row,) = world.rows("heartbeats")
    assert (row["stream_id"], row["event_time"], row["publish_time"]) == ("s", at(900.5), at(1000))
    assert (row["publisher_id"], row["message_id"], row["load"], row["late"]) == ("p1", "1", 2.0, False)
    assert row["payload"] == b'{"load": 2, "other": [1]}'
    assert dict(row["attributes"]) == {"event_time": to_written(900.5), "heartbeat_id": "p1", "stream_id": "s"}
    assert (landed.oldest_event_time, landed.newest_event_time) == (at(900.5), at(900.5))


def test_what_lands_below_the_watermark_is_late(tmp_path: Path) -> None:
    world = World(tmp_path)
    for second in range(60):
        world.wait(1)
        world.topic.publish(second)
    world.land()  # there is no watermark yet: nothing is late
    watermark = world.track().decision.watermark
    assert watermark == at(49)
    world.topic.publish(48.999)
    world.topic.publish(49)
    landed = world.land()
    assert (landed.heartbeats, landed.late) == (2, 1)
    assert [row["event_time"] for row in world.rows("heartbeats") if row["late"]] == [at(48.999)]


# What goes wrong


@pytest.mark.parametrize("table", ["heartbeats", "quarantine"])
@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
def test_a_table_that_fails_leaves_everything_unacknowledged_and_the_next_tick_goes_on(
    world: World, table: str, landed: bool
) -> None:
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
    with pytest.raises(CorruptObject, match="is missing from the tracking log"):
        world.land()
    assert world.steps.taken == []
