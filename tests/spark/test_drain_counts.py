"""What the drain's readers of tracking count as what: as ticks do, with what their process remembers."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.ingest.fakes import World
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.ingest.drain import LANDED, PERSISTED, Connections, Side, Split, batches
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, NO_EVENT
from tidemark.pipeline.watermark.state import Beginning


def test_readers_judge_the_payload_of_laggards_and_remember_copies_from_round_to_round(tmp_path: Path) -> None:
    world = World(tmp_path)
    settings = Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:1"),
        message=MessageSettings(publisher_id="attribute:heartbeat_id"),
        lake=LakeSettings(uri=f"file:{tmp_path}/lake"),
    )
    split = Split(Side.TRACKING, "run", settings, timedelta(seconds=10))
    connections = Connections(split)
    connections.clock, connections.log = world.clock, world.log
    world.log.begin(Beginning(at(-1)))

    def rounds() -> list[dict[str, Any]]:
        return list(batches(split, connections, world.tracking, 0))

    world.wait(100)
    world.topic.publish(99, publisher_id="x")
    world.topic.publish(10, publisher_id="laggard", payload=b"{")
    world.topic.publish(98, publisher_id="in time", payload=b"{")
    first = rounds()
    world.wait(30)
    world.topic.publish(99, publisher_id="x")
    second = rounds()
    assert [PERSISTED.validate_json(row["persisted"]).messages for row in (*first, *second)] == [3, 1]
    histogram = world.log.catch_up().histogram
    start = to_us(at(0)) // BUCKET_US
    cells = zip(histogram.publish_bucket.tolist(), histogram.event_bucket.tolist(), strict=True)
    assert set(cells) == {
        (start + 100, start + 99),
        (start + 100, NO_EVENT),
        (start + 100, start + 98),
        (start + 130, COPY),
    }


def test_readers_land_and_count_each_reading_of_a_message(tmp_path: Path) -> None:
    world = LandsReadings(tmp_path)
    settings = Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:1"),
        message=MessageSettings(each="payload:@", event_time="each:@"),
        lake=LakeSettings(uri=f"file:{tmp_path}/lake"),
    )
    world.log.begin(Beginning(at(-1)))
    world.wait(100)
    world.topic.publish(None, payload=json.dumps([to_us(at(second)) // 1000 for second in (97, 98, 99)]).encode())
    rows = []
    for side, subscription in ((Side.TRACKING, world.tracking), (Side.BASE, world.base)):
        split = Split(side, "run", settings, timedelta(seconds=10))
        connections = Connections(split)
        connections.clock, connections.log = world.clock, world.log
        rows += batches(split, connections, subscription, 0)
    tracked, landed = PERSISTED.validate_json(rows[0]["persisted"]), LANDED.validate_json(rows[-1]["landed"])
    assert (tracked.messages, landed.messages, landed.heartbeats) == (1, 1, 3)
    assert world.log.catch_up().histogram.count.tolist() == [1, 1, 1]


class LandsReadings(World):
    """Judges nothing by the contract of other worlds."""

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None: ...
