"""Rounds on a real Spark and the emulator: everything once quiet, whatever is killed on the way."""

import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.quick import with_policy
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import (
    a_run,
    deaths,
    decide,
    done_until,
    lake_of,
    landed,
    ordain,
    quarantined,
    read_and_die,
    read_for_ever,
    settings_of,
    tracked,
)
from tidemark.pipeline.ingest import rounds as module
from tidemark.pipeline.ingest.outcome import Settled, Side
from tidemark.pipeline.ingest.rounds import Ended, RoundDone


def total(done: Sequence[RoundDone]) -> Settled:
    return sum((one.settled for one in done), Settled())


def test_four_readers_land_a_whole_backlog_and_read_tracking_first(spark: SparkSession, world: PubSubWorld) -> None:
    settings, done = settings_of(world.settings, str(world.lake), readers=4), list[RoundDone]()
    settings = with_policy(settings, near_real_time=timedelta(seconds=2))
    world.publish(20_000, broken=7)
    time.sleep(2.1)
    decide(world, settings)
    with a_run(spark, settings) as rounds:
        for one in rounds.rounds(timedelta(minutes=3), until_young=True):
            done.append(one)
            decide(world, settings)
    assert rounds.ended is Ended.CAUGHT_UP
    assert world.is_quiet(is_tracked=True)
    # A lease that runs out on a busy machine brings a message again: at least once, and every copy is told.
    settled = total(done)
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert tracked(settings) == settled.persisted.messages >= 20_007
    assert len(landed(settings)) == settled.landed.heartbeats
    assert len(quarantined(settings)) == settled.landed.rejected.total()
    acknowledged = settled.landed.acknowledged
    assert acknowledged.count + acknowledged.failed == settled.landed.messages
    assert [one.number for one in done] == list(range(len(done)))
    shares = [tuple(map(one.share.sides.count, (Side.BASE, Side.TRACKING))) for one in done]
    assert shares[0] == (0, 4)
    assert shares[-1] == (3, 1)
    assert shares == sorted(shares), "tracking first, then base"
    newest, oldest = settled.landed.newest_event_time, settled.landed.oldest_event_time
    assert newest - oldest == timedelta(milliseconds=19_999)
    # The last rounds of base have no entry of tracking beside them that could say what they used.
    account = lake_of(settings).tracking_log().catch_up().account.known + rounds._used
    assert min(account.landed, account.tracked) >= 20_007
    assert account.landed_bytes > account.landed
    assert account.pulls > 0
    table = lake_of(settings).heartbeats().current()
    landings = [one for one in done if one.settled.landed.messages]
    assert table.version() <= len(landings), "more commits than rounds that landed anything, and the table's creation"
    snapshots = sum(one.settled.persisted.snapshots for one in done)
    assert snapshots == sum(bool(one.settled.persisted.messages) for one in done)
    assert not (world.lake / "landings").exists(), "rounds land in the tables, as a tick does"


@pytest.mark.slow
def test_readers_killed_at_any_step_lose_and_show_nothing_early(spark: SparkSession, world: PubSubWorld) -> None:
    settings = settings_of(world.settings, str(world.lake))
    steps = ("before write", "after write", "before base ends", "before tracking ends")
    ordain(world.lake, *steps)
    world.publish(1_000, broken=3)

    def is_over() -> bool:
        if not all((deaths(world.lake) / f"{step} done").exists() for step in steps):
            world.publish(200)  # else the next death waits until the leases of the last one are over
            return False
        return world.is_quiet(is_tracked=True)

    settled = total(done_until(spark, settings, is_over, read_and_die))
    assert sorted(path.name for path in deaths(world.lake).iterdir()) == sorted(f"{step} done" for step in steps)
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert len(landed(settings)) == settled.landed.heartbeats
    assert tracked(settings) == settled.persisted.messages >= 1_003
    assert world.is_quiet(is_tracked=True)


@pytest.mark.slow
def test_a_hanging_round_is_given_up(spark: SparkSession, world: PubSubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(world.settings, str(world.lake), readers=2)
    world.publish(500)
    with monkeypatch.context() as impatient:
        impatient.setattr(module, "HANGS_AFTER", timedelta(seconds=3))
        with (
            a_run(spark, settings, read=read_for_ever, interrupt=spark.sparkContext.cancelAllJobs) as rounds,
            pytest.raises(Exception, match="cancelled"),
        ):
            list(rounds.rounds(timedelta(seconds=30), until_young=False))
    assert landed(settings) == []
    done_until(spark, settings, lambda: world.is_quiet(is_tracked=True))
    assert set(landed(settings)) == set(world.published)
