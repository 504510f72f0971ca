"""Run as a program: the diffs of a few heartbeats over Spark Connect, as JSON. A process cannot hold both kinds of
session, so that the tests start this one."""

import json
import sys

from pyspark.sql import SparkSession

from tests.spark.beats import Beat, diffs
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.pipeline.spark.warm_up import warm_up

BEATS = [
    *(Beat("a", event, str(event), values={"temperature": event / 10}) for event in (-30, 0, 30, 119.9)),
    Beat("a", 30, "30", published=90),
    Beat("b", 60, "1", "x", late=True),
]

if __name__ == "__main__":
    session = SparkSession.builder.config(
        map={**session_config(Settings(spark=SparkSettings(remote=sys.argv[1])))}
    ).getOrCreate()
    groups = warm_up(session)
    print(json.dumps({"groups": groups, "rows": [list(row) for row in diffs(session, BEATS)]}, default=str))
    session.stop()
