"""What `tidemark.spark.register` does on a session of one's own, what doctor says of Spark's executors, and who reads
its files."""

import pickle
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import tidemark.spark
from tests.quick import classic
from tidemark.pipeline.compute.slices import ANSWER
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.doctor.spark import report_executors
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.ingest.source.registration import PROBE, is_new_enough
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark import executors
from tidemark.pipeline.spark.executors import WINDOWS, Task, report_ability, run_output
from tidemark.pipeline.spark.session import cores_of, session_config, slots_of
from tidemark.resources.spark import SparkResource

HAS_IT = is_new_enough(pyspark.__version__)


def test_a_spark_that_is_too_old_is_named_with_what_to_do(spark: SparkSession) -> None:
    older: Any = SimpleNamespace(version="4.1.0-amzn-0") if HAS_IT else spark
    with pytest.raises(ToolMissing, match=rf"is {older.version}: install `pyspark>=4.2`"):
        tidemark.spark.register(older)


def test_a_run_in_a_process_of_others_leaves_their_session_as_it_is(spark: SparkSession) -> None:
    zone, settings = "spark.sql.session.timeZone", Settings(spark=classic("local[2]"))
    resource = SparkResource(spark_config=session_config(settings))
    spark.conf.set(zone, "Asia/Tokyo")
    ours, nothing = resource.session(), cast("Any", None)
    resource.teardown_after_execution(nothing)
    assert (ours.conf.get(zone), spark.conf.get(zone), spark.range(3).count()) == ("UTC", "Asia/Tokyo", 3)
    spark.conf.set(zone, "UTC")


def test_slots_of_a_local_spark_count_as_cores_only_up_to_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    cluster = {"spark.master": "spark://here:7077", "spark.executor.instances": "3", "spark.executor.cores": "4"}
    for conf, slots, cores in (
        ({"spark.master": "local[6,4]"}, 6, 2),
        ({"spark.master": "local"}, 1, 1),
        (cluster, 12, 12),
    ):
        session: Any = SimpleNamespace(conf=conf)
        assert (slots_of(session), cores_of(session)) == (slots, cores)
    elsewhere: Any = type("Remote", (SimpleNamespace,), {"__module__": "pyspark.sql.connect.session"})
    there = elsewhere(conf={"spark.master": "local[16]"}, client=SimpleNamespace(host="spark.example.com"))
    assert cores_of(there) == 16


@pytest.mark.skipif(not HAS_IT, reason="the source asks for a newer PySpark")
def test_either_name_reads_it_where_spark_has_one_itself(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    tidemark.spark.register(spark)
    for name in ("pubsub", "tidemark"):
        assert "stream_id" in spark.read.format(name).options(**PROBE).load().columns
    monkeypatch.setattr(tidemark.spark.PubSubDataSource, "called", "rate")
    tidemark.spark.register(spark)
    assert spark.readStream.format("rate").load().columns == ["timestamp", "value"]
    assert "stream_id" in spark.read.format("tidemark").options(**PROBE).load().columns


def test_an_executor_with_tidemark_says_so(spark: SparkSession) -> None:
    ((level, said),) = report_executors(spark)
    assert level is Level.OK
    assert "has tidemark and Polars" in said


@pytest.mark.parametrize("task", [partial(report_ability, WINDOWS), partial(run_output, b"not read", ANSWER)])
def test_an_executor_with_another_tidemark_says_which_versions_differ(
    monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    ours = executors.CONTRACT
    travelled = pickle.loads(cloudpickle.dumps(task))  # noqa: S301 (as Spark sends it, by value)
    monkeypatch.setattr(executors, "CONTRACT", ours + 1)
    (batch,) = travelled([pa.RecordBatch.from_pydict({"id": [1]})])
    (row,) = batch.to_pylist()
    assert row["unable"].endswith(f": it has another version of tidemark (task version {ours + 1} instead of {ours})")


def test_nobody_else_can_read_what_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(f"file:{tmp_path}/written")
    written = [tmp_path / "written", *(tmp_path / "written").iterdir()]
    assert len(written) > 1
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in written} == {path.name: "0o0" for path in written}
