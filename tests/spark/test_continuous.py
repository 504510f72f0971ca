"""Continuous landing on a real Spark and the emulator."""

import uuid
from collections import Counter
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import landed, settings_of
from tests.spark.test_drain import lake_of, quarantined, tracked
from tests.spark.test_drain import landed as landed_ids
from tidemark.pipeline.settings_sections import PubSubSettings


@pytest.fixture
def world(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> PubSubWorld:
    return PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)


def test_rounds_land_and_track_everything_in_one_commit_and_one_entry_each(
    spark: SparkSession, world: PubSubWorld
) -> None:
    settings = settings_of(world.settings, str(world.lake))
    world.publish(5_000, broken=7)
    done = landed(spark, settings, uuid.uuid4().hex, 6)
    assert Counter(landed_ids(settings)) == Counter(world.published)
    assert Counter(quarantined(settings)) == Counter(world.rejected)
    assert tracked(settings) == 5_007
    assert sum(one.settled.landed.acknowledged.count for one in done) == 5_007
    assert world.is_quiet(is_tracked=True)
    busy = [one for one in done if one.messages]
    table = lake_of(settings).heartbeats().current()
    assert table is not None
    assert table.version() <= len(busy), "more commits than rounds that landed anything, and the table's creation"
    print(*[one.sentence() for one in done], sep="\n")
