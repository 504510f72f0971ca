"""The module that `tidemark up` runs once the server listens: one small query and a look at the executors, so that the
first micro-batch finds the session warm, and does not look again."""

from pyspark.sql import SparkSession

from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.spark.executors import WINDOWS, require_able
from tidemark.pipeline.spark.session import session_config, shared_session


def warm_up(session: SparkSession) -> int:
    """Exchange and sort a few rows, and hand some to Python workers; returns how many groups there were. Raises
    ExecutorsUnable."""
    require_able(session, WINDOWS)
    rows = session.range(1000).selectExpr("id % 10 as key", "id").groupBy("key").count().orderBy("key")
    return len(rows.collect())


if __name__ == "__main__":
    warmed = shared_session(session_config(load_settings()))
    warm_up(warmed)
    warmed.stop()
