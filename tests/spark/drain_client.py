"""Run as a program: a drain over Spark Connect, its totals as JSON. A process cannot hold both kinds of session, so
that the tests start this one."""

import json
import sys

from pyspark.sql import SparkSession

from tests.spark.drains import drained, settings_of, small_drain
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, SparkSettings
from tidemark.pipeline.spark.session import session_config

if __name__ == "__main__":
    remote, lake, pubsub = sys.argv[1], sys.argv[2], PubSubSettings.model_validate_json(sys.argv[3])
    session = SparkSession.builder.config(
        map={**session_config(Settings(spark=SparkSettings(remote=remote)))}
    ).getOrCreate()
    done, rounds = drained(session, settings_of(pubsub, lake, small_drain()), "over-connect")
    print(
        json.dumps(
            {
                "ended": done.ended,
                "landed": done.landed.heartbeats,
                "quarantined": done.landed.rejected.total(),
                "tracked": done.persisted.messages,
                "acknowledged": done.landed.acknowledged.count,
                "sentences": [one.sentence() for one in rounds],
            }
        )
    )
    session.stop()
