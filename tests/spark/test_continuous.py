"""Continuous landing on a real Spark and the emulator."""

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.spark.dying_source import deaths, ordain
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import landed, landing_of, read_and_die, read_for_ever, settings_of
from tests.spark.test_drain import lake_of, quarantined, tracked
from tests.spark.test_drain import landed as landed_ids
from tidemark.pipeline.ingest.rounds import Settled
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.spark import continuous
from tidemark.pipeline.watermark.state import Entry, WatermarkState


@pytest.fixture
def world(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> PubSubWorld:
    return PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)


COME_AGAIN_WITHIN = timedelta(seconds=90)
"""What a killed process had leased comes again after its leases, and so does what its open pulls got after that."""


def land_all(spark: SparkSession, settings: Settings, world: PubSubWorld) -> None:
    """Rounds until everything has landed."""
    for _ in landing_of(spark, settings, uuid.uuid4().hex).rounds(COME_AGAIN_WITHIN):
        if set(landed_ids(settings)) == set(world.published):
            break


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
    account = lake_of(settings).tracking_log().catch_up().account.known
    assert (account.landed, account.tracked) == (5_007, 5_007)
    assert account.landed_bytes > account.landed
    assert account.pulls > 0
    busy = [one for one in done if one.messages]
    table = lake_of(settings).heartbeats().current()
    assert table is not None
    assert table.version() <= len(busy), "more commits than rounds that landed anything, and the table's creation"


def test_two_runs_at_once_land_every_message_once_where_no_lease_runs_out(
    spark: SparkSession, world: PubSubWorld
) -> None:
    settings = settings_of(world.settings, str(world.lake), landers=1)
    world.publish(3_000)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(landed, spark, settings, uuid.uuid4().hex, 8) for _ in range(2)]
    total = sum((one.settled for run in runs for one in run.result()), Settled())
    assert set(landed_ids(settings)) == set(world.published)
    assert total.landed.heartbeats == len(landed_ids(settings))
    assert tracked(settings) == total.persisted.messages >= 3_000
    assert world.is_quiet(is_tracked=True)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before write", "after write", "before the end"])
def test_what_a_killed_reader_had_taken_comes_again_and_nothing_of_it_is_visible(
    spark: SparkSession, world: PubSubWorld, step: str
) -> None:
    settings = settings_of(world.settings, str(world.lake), landers=1)
    world.publish(2_000)
    ordain(world.lake, step)
    counted = 0
    for done in landing_of(spark, settings, uuid.uuid4().hex, read=read_and_die).rounds(COME_AGAIN_WITHIN):
        counted += done.settled.landed.heartbeats
        if len(set(landed_ids(settings))) == 2_000:
            break
    assert (deaths(world.lake) / f"{step} done").exists(), "nobody was killed"
    assert set(landed_ids(settings)) == set(world.published)
    assert len(landed_ids(settings)) == counted


class Lost(Exception):
    """The driver is gone."""


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param("before the entry", marks=pytest.mark.slow),
        pytest.param("before the commit", marks=pytest.mark.slow),
        "after the commit",
    ],
)
def test_a_driver_that_dies_while_it_settles_has_acknowledged_nothing_that_is_not_visible(
    spark: SparkSession, world: PubSubWorld, dies: str
) -> None:
    settings = settings_of(world.settings, str(world.lake))
    world.publish(2_000, broken=3)
    append, add = TrackingLog.append, NewFiles.add

    def dying_append(log: TrackingLog, entry: Entry) -> WatermarkState:
        if dies == "before the entry":
            raise Lost
        return append(log, entry)

    def dying_add(files: NewFiles, *what: Any) -> None:
        if dies == "before the commit":
            raise Lost
        add(files, *what)
        if dies == "after the commit":
            raise Lost

    with (
        patch.object(TrackingLog, "append", dying_append),
        patch.object(NewFiles, "add", dying_add),
        pytest.raises(Lost),
    ):
        landed(spark, settings, uuid.uuid4().hex, 30)
    assert not world.is_quiet()
    assert tracked(settings) == (0 if dies == "before the entry" else 2_003)
    visible = landed_ids(settings)
    assert len(visible) == 0, "quarantine comes before heartbeats"
    land_all(spark, settings, world)
    assert set(landed_ids(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)


@pytest.mark.slow
def test_a_round_that_hangs_is_interrupted_and_its_messages_come_again(
    spark: SparkSession, world: PubSubWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(world.settings, str(world.lake), landers=1)
    world.publish(500)
    monkeypatch.setattr(continuous, "HANGS_AFTER", timedelta(seconds=3))
    with pytest.raises(Exception, match="cancelled"):
        landed(
            *(spark, settings, uuid.uuid4().hex, 30),
            read=read_for_ever,
            interrupt=spark.sparkContext.cancelAllJobs,
        )
    assert landed_ids(settings) == []
    land_all(spark, settings, world)
    assert set(landed_ids(settings)) == set(world.published)
