"""A drain whose readers land in a bucket: each opens it anew, in a Python worker of Spark's."""

import time
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.spark.drains import drained, settings_of, small_drain
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.test_drain import landed, quarantined, tracked
from tidemark.pipeline.ingest.drain import Ended
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings

pytestmark = pytest.mark.gcs

MESSAGES, BROKEN = 5_000, 3


def test_a_backlog_is_drained_into_a_bucket_whole(
    spark: SparkSession,
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    fresh_pubsub: PubSubSettings,
    lake_apart: LakeSettings,
    tmp_path: Path,
) -> None:
    world = PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)
    settings = settings_of(world.settings, str(world.lake), small_drain()).model_copy(update={"lake": lake_apart})
    world.publish(MESSAGES, broken=BROKEN)
    time.sleep(2.1)
    done, _ = drained(spark, settings, "into-a-bucket")
    assert done.ended is Ended.CAUGHT_UP
    assert world.is_quiet()
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert tracked(settings) == done.persisted.messages >= MESSAGES + BROKEN
    assert list(open_objects(settings.lake).names("landings/")) == []
    assert not list(tmp_path.rglob("*.parquet")), "nothing landed in a folder"
