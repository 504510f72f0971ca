"""What `tidemark.spark.register` does on a session of one's own."""

from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import tidemark.spark
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.ingest.source.registration import PROBE, is_new_enough

HAS_IT = is_new_enough(pyspark.__version__)


def test_a_spark_that_is_too_old_is_named_with_what_to_do(spark: SparkSession) -> None:
    older: Any = SimpleNamespace(version="4.1.0-amzn-0") if HAS_IT else spark
    with pytest.raises(ToolMissing, match=rf"is {older.version}: install `pyspark>=4.2`"):
        tidemark.spark.register(older)


@pytest.mark.skipif(not HAS_IT, reason="the source asks for a newer PySpark")
def test_both_names_read_it_and_where_spark_has_that_name_itself_the_other_one_does(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidemark.spark.register(spark)
    for name in ("pubsub", "tidemark"):
        assert "stream_id" in spark.read.format(name).options(**PROBE).load().columns
    monkeypatch.setattr(tidemark.spark.PubSubDataSource, "called", "rate")
    tidemark.spark.register(spark)
    assert spark.readStream.format("rate").load().columns == ["timestamp", "value"]
    assert "stream_id" in spark.read.format("tidemark").options(**PROBE).load().columns
