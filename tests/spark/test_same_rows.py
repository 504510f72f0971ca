"""The query in Spark SQL of examples/same_rows gives the rows of heartbeat_diffs."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.test_same_rows import EXAMPLES, computed, expected, in_order

__all__ = ["computed"]


@pytest.mark.slow  # Spark compiles the query for longer than it runs
def test_spark_sql_gives_the_same_rows(spark: SparkSession, computed: Path) -> None:
    spark.read.parquet(*DeltaTable(str(computed / "heartbeats")).file_uris()).createOrReplaceTempView("heartbeats")
    windows = [(partition["window"],) for partition in DeltaTable(str(computed / "heartbeat_diffs")).partitions()]
    spark.createDataFrame(windows, "window string").createOrReplaceTempView("computed")
    rows = spark.sql((EXAMPLES / "in_spark.sql").read_text()).toArrow().to_pylist()
    assert in_order([tuple(row.values()) for row in rows]) == expected(computed)
