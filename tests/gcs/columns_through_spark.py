"""Write columns of Parquet with Spark where the lake is, read them back, and print their sums as JSON.

`python -m tests.gcs.columns_through_spark <lake.uri> <lake.endpoint> <connector JAR> <rows>`: a program of its own,
because a Spark session and its JARs belong to a process for good.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

from pipeline.lake.store.address import spark_storage_config, table_uri
from pipeline.settings_sections import LakeSettings


def main(uri: str, endpoint: str, jar: str, rows: int) -> None:
    lake = LakeSettings(uri=uri, endpoint=endpoint)
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    for key, value in (spark_storage_config(lake) | {"spark.driver.bindAddress": "127.0.0.1"}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    folder = table_uri(lake, "columns")
    numbers = spark.range(rows).select(F.col("id").alias("number"), F.col("id").cast("string").alias("text"))
    numbers.repartition(2).write.parquet(folder)
    written = spark.read.parquet(folder)
    total = written.agg(F.sum("number").alias("number"), F.sum(F.length("text")).alias("text")).collect()[0]
    print(json.dumps(total.asDict()))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
