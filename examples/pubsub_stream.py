"""Read a Pub/Sub subscription into Parquet with Spark: an example of the source `pubsub`.

    python examples/pubsub_stream.py --project P --subscription S --lake file:///tmp/lake --out /tmp/heartbeats

It reads the waiting messages and ends. With --every '10 seconds' it reads until Ctrl-C. If it is started again with the
same --out, it continues where it stopped, even after a crash.
"""

import argparse
import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.pipeline.spark.java import set_java_home
from tidemark.pipeline.spark.session import SESSION
from tidemark.spark import register


def keep_batch(messages: DataFrame, number: int, out: Path) -> None:
    """Write a micro-batch under its number. A batch that is repeated after a crash replaces the same rows."""
    folder = out / "batches" / f"batch={number:06d}"
    unfinished = folder.with_name(f"unfinished-{number:06d}")
    messages.dropDuplicates(["message_id"]).write.mode("overwrite").parquet(str(unfinished))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """Return the subscription as a streaming DataFrame."""
    register(spark)
    return spark.readStream.format("pubsub").options(**options).load()


def session() -> SparkSession:
    """Start a Spark session in this process, with this Python for its workers."""
    set_java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,4]").appName("pubsub stream").config("spark.ui.enabled", "false")
    for key, value in SESSION.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return started


def told(query: StreamingQuery) -> str:
    """Describe the last batch: its number, and the watermark of its rows from its end offset."""
    progress = query.lastProgress
    if progress is None:
        return "nothing was read"
    end = json.loads(progress["sources"][0]["endOffset"])
    watermark = end.get("watermark_us")
    said = "no watermark" if watermark is None else f"watermark {datetime.fromtimestamp(watermark / 1e6).astimezone()}"
    return f"batch {end['batch']}: {progress['numInputRows']} messages, {said}"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", required=True)
    parser.add_argument("--subscription", required=True)
    parser.add_argument("--lake", required=True, help="where messages land: file:///folder or gs://bucket/prefix")
    parser.add_argument("--out", required=True, type=Path, help="a folder for the rows and the checkpoint")
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST", "")
    parser.add_argument("--emulator-host", default=emulator, help="host:port of an emulator; else Google's service")
    parser.add_argument("--readers", default="2")
    parser.add_argument("--every", help="such as '10 seconds': go on for ever; else read what is there, and end")
    return parser.parse_args(given)


def options_of(chosen: argparse.Namespace) -> dict[str, str]:
    """Return the options of the Spark source."""
    return {
        "project": chosen.project,
        "subscription": chosen.subscription,
        "lake": chosen.lake,
        "emulatorHost": chosen.emulator_host,
        "readers": chosen.readers,
    }


def read(spark: SparkSession, chosen: argparse.Namespace) -> str:
    """Read until no message is left, or until the query is stopped. Return a description of the messages read."""
    trigger = {"processingTime": chosen.every} if chosen.every else {"availableNow": True}
    query = (
        stream(spark, options_of(chosen))
        .writeStream.foreachBatch(lambda messages, number: keep_batch(messages, number, chosen.out))
        .option("checkpointLocation", str(chosen.out / "checkpoint"))
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()
    kept = spark.read.parquet(str(chosen.out / "batches"))
    distinct = kept.select("message_id").distinct().count()
    return f"{told(query)}\n{kept.count()} messages are in {chosen.out / 'batches'}, {distinct} distinct"


if __name__ == "__main__":
    started = session()
    print(read(started, arguments()))
    started.stop()
