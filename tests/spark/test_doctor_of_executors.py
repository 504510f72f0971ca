"""What doctor says of Spark's executors: each looks by itself, and says what a micro-batch would lack."""

import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.doctor.spark import seen_executors
from tidemark.pipeline.spark import executors
from tidemark.pipeline.spark.executors import WINDOWS, look


def test_an_executor_with_tidemark_says_so(spark: SparkSession) -> None:
    ((level, said),) = seen_executors(spark)
    assert level is Level.OK
    assert "has tidemark and Polars" in said


def test_an_executor_with_another_tidemark_says_which_contracts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = executors.CONTRACT
    travelled = pickle.loads(cloudpickle.dumps(look))  # noqa: S301 (as Spark sends it, by value)
    monkeypatch.setattr(executors, "CONTRACT", ours + 1)
    (batch,) = travelled(WINDOWS, [pa.RecordBatch.from_pydict({"id": [1]})])
    (row,) = batch.to_pylist()
    assert row["unable"].endswith(f": it has another tidemark, whose contract is {ours + 1} and not {ours}")
