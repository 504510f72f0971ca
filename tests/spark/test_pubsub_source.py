"""The source `pubsub` on a real Spark and the emulator: everything once quiet, whatever is killed on the way."""

import json
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.pubsub_stream import arguments, read
from tests.fixtures_emulator import QUICK_LEASE
from tests.programs import ended
from tests.quick import with_policy
from tests.spark.dying_driver import SEEN
from tests.spark.pubsub_world import Batches, PubSubWorld, read_available
from tests.spark.rounds import decide, quarantined, settings_of
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.ingest.source.pubsub_source import PubSubDataSource
from tidemark.pipeline.ingest.take import Budget

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(PubSubDataSource)


def test_readers_get_every_message_and_the_rejected_go_to_quarantine(spark: SparkSession, world: PubSubWorld) -> None:
    world.publish(3000, broken=5)
    batches = Batches()
    options = world.options(readers="3", batchMessages="300", keepBatches="0", maxRowsPerTrigger="1700")
    checkpoint = world.folder / "checkpoint"
    read_available(spark, options, checkpoint, batches.take, "pubsub")
    assert batches.ids == sorted(world.published)
    assert max(len(rows) for rows in batches.rows.values()) <= 1700
    settings = settings_of(world.settings, str(world.lake))
    assert sorted(quarantined(settings)) == sorted(world.rejected)
    assert world.is_quiet()
    row = batches.rows[0][0]
    assert (row["load"], row["payload"], row["watermark"], row["late"]) == (1.5, b'{"load": 1.5}', None, False)
    assert row["attributes"]["event_time"] == str(int(row["event_time"].timestamp() * 1000 + 0.5))
    assert abs(row["publish_time"] - row["event_time"]) < timedelta(minutes=5)

    # From the checkpoint it goes on; with a log beside it, rows carry the newest watermark and what is below is late.
    time.sleep(1)
    quick = with_policy(settings, band=timedelta(seconds=2), idle_timeout=timedelta(seconds=1))
    decide(world, quick, Budget(10_000, 1 << 24, timedelta(seconds=5), 10_000))
    world.publish(100)
    before = max(batches.rows)
    progress = read_available(spark, options, checkpoint, batches.take, "pubsub")
    assert batches.ids == sorted(world.published)
    assert min(number for number, rows in batches.rows.items() if rows and number > before) == before + 1
    rows = [row for number, found in batches.rows.items() if number > before for row in found]
    (watermark,) = {row["watermark"] for row in rows}
    assert {row["late"] for row in rows} == {row["event_time"] < watermark for row in rows}
    offset = json.loads(progress["sources"][0]["endOffset"])
    assert from_us(offset["watermark_us"]).timestamp() == watermark.timestamp()
    kept = {path.name.split("-")[0] for path in (world.lake / "landings" / offset["run"]).iterdir()} - {"over"}
    assert {int(number) for number in kept} == {offset["batch"]}, "what was processed is deleted"


@pytest.mark.timeout(600)  # a second JVM: on a busy machine that takes its time
def test_a_driver_killed_in_foreach_batch_gets_the_same_batch_again(spark: SparkSession, world: PubSubWorld) -> None:
    world.publish(500)
    out = world.folder / "out"
    out.mkdir()
    options = world.options()
    given = [
        *(f"--project={options['project']}", f"--subscription={options['subscription']}", f"--lake={options['lake']}"),
        *(f"--out={out}", f"--emulator-host={options['emulatorHost']}"),
    ]
    command = [sys.executable, "-m", "tests.spark.dying_driver", *given]
    killed = ended(command, ROOT, seconds=400, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    seen = json.loads((out / SEEN).read_text())
    assert seen
    assert world.is_quiet() == (len(seen) == 500)
    world.publish(200)
    said = read(spark, arguments(given))
    if not world.is_quiet():  # the killed driver's last pull had leased some of them
        time.sleep(QUICK_LEASE.total_seconds() + 1)
        said = read(spark, arguments(given))
    assert "700 messages are in" in said
    assert "700 distinct" in said
    first = pq.read_table(out / "batches" / "batch=000000")["message_id"].to_pylist()
    assert sorted(first) == seen, "served from the manifest: the same messages in the same batch"
    assert world.is_quiet()
