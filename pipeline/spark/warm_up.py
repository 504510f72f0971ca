"""Warms up Spark. `tidemark up` runs this module once its Spark Connect server listens. The first run is then
faster."""

from pyspark.sql import SparkSession

from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.spark.executors import WINDOWS, require_able
from tidemark.pipeline.spark.session import session_config, shared_session


def warm_up(session: SparkSession) -> int:
    """Check the executors and run a small query, and return the number of its rows. The check starts Python workers.
    Raises ExecutorsUnable if the executors cannot run tidemark."""
    require_able(session, WINDOWS)
    rows = session.range(1000).selectExpr("id % 10 as key", "id").groupBy("key").count().orderBy("key")
    return len(rows.collect())


if __name__ == "__main__":
    warmed = shared_session(session_config(load_settings()))
    warm_up(warmed)
    warmed.stop()
