"""Run as a program: rounds over Spark Connect until both backlogs are young, their totals as JSON. A process cannot
hold both kinds of session, so that the tests start this one."""

import json
import sys
from datetime import timedelta

from pyspark.sql import SparkSession

from tests.spark.rounds import a_run, settings_of
from tidemark.pipeline.ingest.outcome import Settled
from tidemark.pipeline.ingest.rounds import sentence_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, SparkSettings
from tidemark.pipeline.spark.session import session_config

if __name__ == "__main__":
    remote, lake, pubsub = sys.argv[1], sys.argv[2], PubSubSettings.model_validate_json(sys.argv[3])
    session = SparkSession.builder.config(
        map={**session_config(Settings(spark=SparkSettings(remote=remote)))}
    ).getOrCreate()
    with a_run(session, settings_of(pubsub, lake, readers=4)) as rounds:
        done = list(rounds.rounds(timedelta(minutes=3), until_young=True))
    settled = sum((one.settled for one in done), Settled())
    print(
        json.dumps(
            {
                "ended": rounds.ended,
                "landed": settled.landed.heartbeats,
                "quarantined": settled.landed.rejected.total(),
                "tracked": settled.persisted.messages,
                "acknowledged": settled.landed.acknowledged.count,
                "sentences": [sentence_of([one]) for one in done],
            }
        )
    )
    session.stop()
