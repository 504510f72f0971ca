"""Draining a backlog on a real Spark and the emulator: everything once quiet, whatever is killed on the way."""

import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.spark.drains import drain_of, drained, read_and_die, settings_of, small_drain
from tests.spark.dying_source import deaths, ordain
from tests.spark.pubsub_world import QUIET_WITHIN_SECONDS, PubSubWorld
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.ingest.drain import Ended, Round, Side, at_once
from tidemark.pipeline.ingest.landing import Landed
from tidemark.pipeline.ingest.tracking import Persisted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Snapshot


@pytest.fixture
def world(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> PubSubWorld:
    return PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)


def run_name() -> str:
    return uuid.uuid4().hex


def lake_of(settings: Settings) -> Lake:
    return Lake(settings.lake, settings.message.kinds, SystemClock())


def message_ids(table: object) -> list[str]:
    current = table.current()  # type: ignore[attr-defined]
    return [] if current is None else current.to_pyarrow_table(columns=["message_id"])["message_id"].to_pylist()


def landed(settings: Settings) -> list[str]:
    return message_ids(lake_of(settings).heartbeats())


def quarantined(settings: Settings) -> list[str]:
    return message_ids(lake_of(settings).quarantine())


def tracked(settings: Settings) -> int:
    log = lake_of(settings).tracking_log()
    entries = [log.entry(number) for number in log.numbers()]
    return sum(int(entry.histogram.count.sum()) for entry in entries if isinstance(entry, Snapshot))


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 5, 10)], 1),
        ([(0, 0, 10), (1, 10, 20)], 1),  # one after the other
        ([(0, 0, 10), (1, 9, 20)], 2),
        ([(0, 0, 4), (0, 0, 10), (1, 5, 8), (2, 9, 20), (3, 9, 20)], 3),  # the first had two batches
    ],
)
def test_the_number_of_readers_at_once_follows_from_when_each_began_and_ended(
    spans: list[tuple[int, int, int]], most: int
) -> None:
    assert at_once(dict(zip(("reader", "began_us", "ended_us"), span, strict=True)) for span in spans) == most


def test_a_round_says_how_many_readers_ran_at_the_same_time_where_not_all_did() -> None:
    done = Round(Side.BASE, 0, 4, 2, 10.0, Landed(heartbeats=50), Persisted(), is_dry=False, backlog_age=None)
    assert done.sentence().startswith("round 0: 4 readers of base, at most 2 at the same time, landed 50 heartbeats")
    assert replace(done, at_once=4).sentence().startswith("round 0: 4 readers of base landed 50 heartbeats")


def test_a_backlog_on_both_subscriptions_is_drained_by_four_readers_tracking_first(
    spark: SparkSession, world: PubSubWorld
) -> None:
    settings = settings_of(world.settings, str(world.lake), small_drain())
    world.publish(20_000, broken=7)
    time.sleep(2.1)
    done, rounds = drained(spark, settings, run_name())
    assert done.ended is Ended.CAUGHT_UP
    assert world.is_quiet()
    # A lease that runs out on a busy machine brings a message again: at least once, and every copy is told.
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert tracked(settings) == done.persisted.messages >= 20_007
    assert len(landed(settings)) == done.landed.heartbeats
    assert len(quarantined(settings)) == done.landed.rejected.total()
    assert done.landed.acknowledged.count + done.landed.acknowledged.failed == done.landed.messages
    sides = [one.side for one in rounds]
    assert sides == sorted(sides, key=list(Side).index)
    assert set(sides) == {Side.TRACKING, Side.BASE}
    assert [one.number for one in rounds] == list(range(done.rounds_done))
    assert all(one.readers == 4 and one.at_once in (1, 2) for one in rounds)  # the session has two places
    newest_ms = round((done.landed.newest_event_time or SystemClock().now()).timestamp() * 1000)
    oldest_ms = round((done.landed.oldest_event_time or SystemClock().now()).timestamp() * 1000)
    assert newest_ms - oldest_ms == 19_999
    assert not (world.lake / "landings").exists(), "a drain lands in the tables, as a tick does"


def test_nothing_is_read_where_nothing_is_behind(spark: SparkSession, world: PubSubWorld) -> None:
    settings = settings_of(world.settings, str(world.lake), small_drain(start_after="2m", stop_below="1m"))
    world.publish(10)
    done, rounds = drained(spark, settings, run_name())
    assert (done.ended, done.rounds_done, rounds) == (Ended.CAUGHT_UP, 0, [])
    assert lake_of(settings).tracking_log().catch_up().complete_from is not None


def test_a_drain_ends_in_time_and_the_next_run_goes_on(spark: SparkSession, world: PubSubWorld) -> None:
    drain = small_drain(max_seconds="1s", round_seconds="1s", batch_messages=100, readers=1)
    settings = settings_of(world.settings, str(world.lake), drain)
    world.publish(10_000)
    time.sleep(2.1)
    first, _ = drained(spark, settings, run_name())
    assert first.ended is Ended.TIME_IS_UP
    assert first.rounds_done <= 2, "one of tracking, and where that was quick one of base"
    assert first.landed.messages < 10_000
    ample = settings.model_copy(update={"drain": small_drain()})
    assert drained(spark, ample, run_name())[0].ended is Ended.CAUGHT_UP
    assert set(landed(settings)) == set(world.published)


def test_messages_that_another_consumer_holds_are_left_alone_after_two_empty_rounds(
    spark: SparkSession, world: PubSubWorld
) -> None:
    settings = settings_of(world.settings, str(world.lake), small_drain())
    world.publish(50)
    held = world.subscriber.pull(subscription=world.settings.base_path, max_messages=50, timeout=5)
    world.subscriber.modify_ack_deadline(
        subscription=world.settings.base_path,
        ack_ids=[received.ack_id for received in held.received_messages],
        ack_deadline_seconds=120,
    )
    time.sleep(2.1)
    done, rounds = drained(spark, settings, run_name())
    assert done.ended is Ended.RAN_DRY
    assert [one.is_dry for one in rounds if one.side is Side.BASE] == [True, True]
    assert done.landed.messages + len(held.received_messages) == 50


class UnknownAge:
    """A backlog of which nothing can be read, as when the budget of snapshots is spent."""

    def read(self) -> Reading:
        raise ReadingUnavailable("the budget is spent")


def test_live_traffic_on_tracking_does_not_keep_a_drain_from_base_where_no_age_is_known(
    spark: SparkSession, world: PubSubWorld
) -> None:
    drain = small_drain(stop_below="3s", round_seconds="2s", max_seconds="120s", readers=2)
    settings = settings_of(world.settings, str(world.lake), drain)
    world.publish(3000)
    time.sleep(3.1)
    ended = Event()

    def live() -> None:
        while not ended.wait(0.05):
            world.publish(5)

    run = drain_of(spark, settings, run_name())
    run.backlogs = {side: UnknownAge() for side in Side}
    run.log.begin(Beginning(SystemClock().now()))
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(live)
        try:
            rounds = list(run.rounds())
        finally:
            ended.set()
    publishing.result()
    assert run.ended is Ended.CAUGHT_UP
    assert not any(one.is_dry for one in rounds), "there is always something to pull"
    for side in Side:
        behind = [one.oldest is None or one.oldest >= drain.stop_below for one in rounds if one.side is side]
        assert behind[-2:] == [False, False], "both looked young"
        assert behind[0], "the backlog came first"
    assert len(set(landed(settings))) > 3000


def test_readers_killed_at_every_step_lose_nothing_and_the_report_lacks_no_more_than_their_batches(
    spark: SparkSession, world: PubSubWorld
) -> None:
    # Tracking: before an entry of the log, and before its acknowledgement. Base: the same about an append.
    steps = (
        *("before create .parquet", "after create .parquet"),
        *("before append heartbeats", "after append heartbeats"),
    )
    settings = settings_of(world.settings, str(world.lake), small_drain(batch_messages=400, readers=2))
    ordain(world.lake, *steps)
    world.publish(4000, broken=3)
    until = time.monotonic() + QUIET_WITHIN_SECONDS
    told = 0
    while not (world.is_quiet(is_tracked=True) and deaths_are_over(world)):
        assert time.monotonic() < until
        told += drained(spark, settings, run_name(), read_and_die)[0].landed.heartbeats
    assert sorted(path.name for path in deaths(world.lake).iterdir()) == sorted(f"{step} done" for step in steps)
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)
    assert tracked(settings) >= 4003
    # The batches of an attempt that was killed are in the table, and no report counts them.
    assert 0 < told <= len(landed(settings))


def deaths_are_over(world: PubSubWorld) -> bool:
    return all(path.name.endswith(" done") for path in deaths(world.lake).iterdir())


@pytest.mark.slow
def test_a_drain_whose_driver_is_killed_in_the_middle_of_a_round_loses_nothing(
    spark: SparkSession, world: PubSubWorld
) -> None:
    settings = settings_of(world.settings, str(world.lake), small_drain())
    world.publish(10_000, broken=3)
    time.sleep(2.1)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying_drain", str(world.lake), world.settings.model_dump_json()],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(set(landed(settings))) < 10_000, "it was killed before it was done"
    until = time.monotonic() + QUIET_WITHIN_SECONDS
    while not world.is_quiet():  # what the dead readers held comes again when its lease is over
        assert time.monotonic() < until
        drained(spark, settings, run_name())
    assert set(landed(settings)) == set(world.published)
    assert set(quarantined(settings)) == set(world.rejected)


def test_two_drains_at_once_share_the_backlog(spark: SparkSession, world: PubSubWorld) -> None:
    settings = settings_of(world.settings, str(world.lake), small_drain(readers=1))  # one place of Spark's each
    world.publish(6000)
    time.sleep(2.1)
    with ThreadPoolExecutor(2) as both:
        runs = [both.submit(drained, spark, settings, run_name()) for _ in range(2)]
    both_did = [run.result()[0] for run in runs]
    assert world.is_quiet()
    assert set(landed(settings)) == set(world.published)
    assert sum(done.landed.heartbeats for done in both_did) == len(landed(settings)) >= 6000
    assert sum(done.persisted.messages for done in both_did) >= 6000
