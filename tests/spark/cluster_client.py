"""Run as a program: work on a cluster, its outcome as JSON. The arguments are the settings of `[spark]`, then what to
do and what that needs. A process holds one kind of session, so that the tests start this one."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark import rounds as readers
from tests.spark.rounds import a_run, landed, read_handing_over, settings_of
from tests.spark.test_micro_batch import WINDOWING, WINDOWS, House
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings, SparkSettings
from tidemark.pipeline.spark.executors import ABLE, CONTRACT, PYTHON
from tidemark.pipeline.spark.executors import WINDOWS as WINDOWS_NEED
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.spark import SparkResource
from tidemark.spark import register

STRETCHES = 300
"""Windows with a gap after each: as many tasks, so that a worker can be killed between them."""

SPREAD = [WINDOWING.numbered(WINDOWING.number_of(WINDOWS[0].start) + 2 * number) for number in range(STRETCHES)]


def windows(session: SparkSession, lake: str, is_late: bool = False) -> dict[str, Any]:
    """Compute the windows of SPREAD, or say why that is refused. Executors that are `is_late` come after the look."""
    if is_late:
        session.conf.set(f"{ABLE}.{WINDOWS_NEED[0]}", f"{CONTRACT} {session.conf.get(PYTHON, '')}")
    try:
        computed = House(Path(lake), session).compute(SPREAD, watermark=SPREAD[-1].end)
    except ExecutorsUnable as error:
        return {"refused": str(error)}
    return {"rows": sum(computed.rows.values())}


def rounds(session: SparkSession, pubsub: dict[str, Any], lake: str, messages: int) -> dict[str, Any]:
    """Rounds until so many different messages are visible and nothing is outstanding, or why that is refused."""
    settings, done = settings_of(PubSubSettings.model_validate(pubsub), lake, readers=2), 0
    try:
        with a_run(session, settings, read=read_handing_over) as run:
            for _ in run.rounds(timedelta(minutes=6), until_young=False):
                done += 1
                if len(set(landed(settings))) == messages and not any(
                    backlog.read().names_a_message for backlog in run.backlogs.values()
                ):
                    break
    except ExecutorsUnable as error:
        return {"refused": str(error)}
    return {"rounds": done}


def ids(frame: DataFrame) -> list[str]:
    return sorted(row["message_id"] for row in frame.select("message_id").collect())


def source(session: SparkSession, options: dict[str, str], folder: str) -> dict[str, Any]:
    """Read a batch twice, and stream the rest, or say why that is refused."""
    try:
        register(session)
    except ExecutorsUnable as error:
        return {"refused": str(error)}
    batch = session.read.format("pubsub").options(**options, landing="first").load()
    twice = [ids(batch), ids(batch)]
    try:
        return {"batches": twice, "streamed": _streamed(session, options, folder)}
    except PySparkException as error:
        return {"batches": twice, "refused": str(error)}


def _streamed(session: SparkSession, options: dict[str, str], folder: str) -> list[str]:
    """The ids of what a stream brings, through a Python function of the user's own."""
    query = (
        session.readStream.format("pubsub")
        .options(**options)
        .load()
        .select("message_id")
        .mapInArrow(with_tidemark, "message_id string")
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return ids(session.read.parquet(f"{folder}/rows"))


def with_tidemark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hands the rows on where tidemark can be imported."""
    import tidemark.pipeline.compute.slices  # noqa: F401

    yield from batches


WORK: dict[str, Callable[..., dict[str, Any]]] = {"windows": windows, "rounds": rounds, "source": source}

if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(readers)  # type: ignore[no-untyped-call]  # executors lack the tests
    settings = Settings(spark=SparkSettings.model_validate_json(sys.argv[1]))
    session = SparkResource(spark_config=session_config(settings)).session()
    print(json.dumps([WORK[name](session, **given) for name, given in json.loads(sys.argv[2])]))
    session.stop()
    # As the command ends: the interpreter's own shutdown aborts if a library's thread still calls into Python.
    sys.stdout.flush()
    os._exit(0)
