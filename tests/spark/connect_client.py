"""Run as a program: compute the windows of a lake over Spark Connect; as JSON, how many rows they have. A process holds
one kind of session, so that the tests start this one."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.test_micro_batch import WINDOWS, House
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.pipeline.spark.warm_up import warm_up

if __name__ == "__main__":
    session = SparkSession.builder.config(
        map={**session_config(Settings(spark=SparkSettings(remote=sys.argv[1])))}
    ).getOrCreate()
    groups = warm_up(session)
    computed = House(Path(sys.argv[2]), session).compute(WINDOWS)
    print(json.dumps({"groups": groups, "rows": sum(computed.rows.values())}))
    session.stop()
