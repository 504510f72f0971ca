"""What Spark writes into a lake's folder is for its user alone."""

from pathlib import Path

from pyspark.sql import SparkSession


def test_nobody_else_can_read_what_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(f"file:{tmp_path}/written")
    written = [tmp_path / "written", *(tmp_path / "written").iterdir()]
    assert len(written) > 1
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in written} == {path.name: "0o0" for path in written}
