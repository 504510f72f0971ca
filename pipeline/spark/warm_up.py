"""Warms up Spark: `tidemark up` runs this module once the server listens. It runs a small query and checks the
executors, so that the first micro-batch need not."""

from pyspark.sql import SparkSession

from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.spark.executors import WINDOWS, require_able
from tidemark.pipeline.spark.session import session_config, shared_session


def warm_up(session: SparkSession) -> int:
    """Check the executors, which starts Python workers, and run a small query with a shuffle and a sort. Returns the
    query's row count. Raises ExecutorsUnable."""
    require_able(session, WINDOWS)
    rows = session.range(1000).selectExpr("id % 10 as key", "id").groupBy("key").count().orderBy("key")
    return len(rows.collect())


if __name__ == "__main__":
    warmed = shared_session(session_config(load_settings()))
    warm_up(warmed)
    warmed.stop()
