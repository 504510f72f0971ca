"""Run as a program: the source `pubsub` over Spark Connect, in both forms, as JSON. A process cannot hold both kinds of
session, so that the tests start this one."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidemark.pipeline.ingest.source.pubsub_source import PubSubDataSource
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import session_config


def ids(frame: DataFrame) -> list[str]:
    return sorted(row["message_id"] for row in frame.select("message_id").collect())


if __name__ == "__main__":
    remote, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    session = SparkSession.builder.config(
        map={**session_config(Settings(spark=SparkSettings(remote=remote)))}
    ).getOrCreate()
    session.dataSource.register(PubSubDataSource)
    # Over Connect each action plans the read anew: only the name makes the second one bring the same rows.
    batch = session.read.format("pubsub").options(**options, landing="first").load()
    batches = [ids(batch), ids(batch)]
    query = (
        session.readStream.format("pubsub")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = ids(session.read.parquet(str(folder / "rows")))
    print(json.dumps({"streamed": streamed, "batches": batches}))
    session.stop()
