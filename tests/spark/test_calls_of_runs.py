"""Runs make the calls that the table of permissions lists for them, and no others: rounds, windows and
housekeeping, on servers that record every call."""

from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.gcs.apart import fresh_lake
from tests.identity.documented import LOOK_AT_BUCKET
from tests.identity.recording import recorded_buckets
from tests.identity.test_recorded_calls import ONLY_SOMETIMES, Servers, of, servers  # noqa: F401
from tests.spark.beats import FIELDS, batch_over
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import landed, settings_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.micro_batch import compute_windows
from tidemark.pipeline.doctor.identity import IN_PARTS, Component
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.rounds import Rounds, read_on_spark
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.orchestrator.names import INGEST
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.spark.executors import require_able
from tidemark.pipeline.upkeep.housekeeping import Housekeeper
from tidemark.resources.lake import LakeResource

pytestmark = pytest.mark.gcs

CLOCK = SystemClock()
ASKED_IN_VAIN = {LOOK_AT_BUCKET}
"""A library looks the bucket up when an object is not there, and goes on without an answer."""

SMALL = {IN_PARTS}
"""Nothing here is large enough to be written in parts: the lander's test does that, with the same writer."""


def ingest(spark: SparkSession, settings: Settings) -> None:
    """A run, of the parts that the job has."""
    kept = Kept()
    pubsub = Subscriptions(settings, kept, CLOCK)
    lake = LakeResource(settings=settings, kept=kept, clock=CLOCK)
    require_able(spark)
    with closing(pubsub.base()) as base, closing(pubsub.tracking()) as tracking:
        both = {Side.TRACKING: tracking, Side.BASE: base}
        rounds = Rounds(
            settings=settings,
            run="run",
            readers=settings.ingest.readers,
            settling=Settling(lake.tracking_log("settling"), CLOCK, both, lake.new_files("settling")),
            read=partial(read_on_spark, spark, lambda: None),
            newest=lake.tracking_log("run").newest,
            backlogs={Side.TRACKING: pubsub.tracking_backlog(INGEST), Side.BASE: pubsub.base_backlog(INGEST)},
        )
        list(rounds.rounds(timedelta(minutes=1), until_young=True))


def test_runs_call_what_the_table_says(spark: SparkSession, servers: Servers, tmp_path: Path) -> None:  # noqa: F811
    subscriber, publisher = subscriber_client(*servers.pubsub.server), publisher_client(*servers.pubsub.server)
    with recorded_buckets(tmp_path) as buckets:
        world = PubSubWorld(subscriber, publisher, servers.pubsub, tmp_path)
        lake = fresh_lake(buckets.endpoint)
        own = {"lake": lake, "message": MessageSettings(fields=FIELDS)}
        settings = settings_of(world.settings, str(world.lake), readers=2).model_copy(update=own)
        began = CLOCK.now()
        world.publish(300)
        servers.recorder.methods.clear()
        ingest(spark, settings)
        now = CLOCK.now()
        batch = batch_over(Lake(lake, FIELDS, CLOCK), spark, now + timedelta(hours=1))  # as if it had passed the window
        both = (settings.windowing.containing(moment) for moment in (began - timedelta(seconds=1), began))
        computed = compute_windows(batch, sorted(set(both)))
        chores = list(Housekeeper(settings, CLOCK).chores())
        found = servers.recorder.taken() | buckets.taken()
        assert set(landed(settings)) == set(world.published)
        assert sum(computed.rows.values()) > 0
    subscriber.transport.close()
    publisher.transport.close()
    assert not [chore.sentence for chore in chores if chore.failed]
    assert of(Component.RUNS) - ONLY_SOMETIMES - SMALL <= found - ASKED_IN_VAIN <= of(Component.RUNS)
