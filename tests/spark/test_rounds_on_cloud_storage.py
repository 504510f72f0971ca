"""Rounds whose readers write into a bucket: each opens it anew, in a Python worker of Spark's."""

from datetime import timedelta
from pathlib import Path

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import a_run, landed, quarantined, settings_of, tracked
from tidemark.pipeline.ingest.outcome import Settled
from tidemark.pipeline.ingest.rounds import Ended
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings

pytestmark = pytest.mark.gcs

MESSAGES, BROKEN = 5_000, 3


def test_a_backlog_is_landed_in_a_bucket_whole(
    spark: SparkSession,
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    fresh_pubsub: PubSubSettings,
    lake_apart: LakeSettings,
    tmp_path: Path,
) -> None:
    world = PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)
    settings = settings_of(world.settings, str(world.lake)).model_copy(update={"lake": lake_apart})
    world.publish(MESSAGES, broken=BROKEN)
    with a_run(spark, settings) as rounds:
        done = list(rounds.rounds(timedelta(minutes=3), until_young=True))
    settled = sum((one.settled for one in done), Settled())
    assert rounds.ended is Ended.CAUGHT_UP
    assert world.is_quiet(is_tracked=True)
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert tracked(settings) == settled.persisted.messages >= MESSAGES + BROKEN
    assert list(open_objects(settings.lake).names("landings/")) == []
    assert not list(tmp_path.rglob("*.parquet")), "nothing landed in a folder"
