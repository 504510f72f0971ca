"""Registers `format("pubsub")` on a session that can run it, and reports what is missing on one that cannot."""

import re
import sys
from pathlib import Path

import pyspark
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from tidemark.pipeline.errors import ExecutorsUnable, ToolMissing
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.executor_archive import carry_environment, is_connected, is_out_of_reach_of_streams
from tidemark.pipeline.spark.executors import REMEDY, SOURCE, require_able

PROBE = {"project": "looked-at", "subscription": "looked-at", "lake": "file:///looked-at"}
"""Options that are enough to plan a read. Planning needs neither Pub/Sub nor the lake."""

OLDEST = (4, 2)
"""First version of Spark that lets a Python source read until nothing is left, and tells it where to resume after a
restart."""


def register(session: SparkSession, *, environment: str | None = None) -> None:
    """Register the source as `format("pubsub")` and as `format("tidemark")`. If Spark already has a source `pubsub`, as
    on Databricks, that source keeps the name. `environment` is an archive created by `tidemark provision --executors`:
    a path on this machine, or an address that Spark's machines can read. With `environment`, the executors' Python does
    not need tidemark.

    Limit: over Spark Connect, streams find the archive only if the server was started with it. Otherwise each stream is
    refused when it starts; batch reads work. Guarantee: on return, the driver's Python and that of each checked
    executor can run the source. An executor that joins later is checked when it runs a task. Nothing is pulled or
    written.

    Raises ToolMissing if PySpark or Spark is older than 4.2, InvalidSettings if the archive cannot be used, and
    ExecutorsUnable if driver or executors lack something. The check waits for an executor, and then takes seconds.
    """
    for which, version in (("PySpark here", pyspark.__version__), ("the session's Spark", session.version)):
        if not is_new_enough(version):
            raise ToolMissing(
                f'format("pubsub") needs PySpark and Spark 4.2 or newer, and {which} is {version}: install '
                "`pyspark>=4.2`. Everything else in tidemark also runs on 4.0 and 4.1. Nothing was registered"
            )
    from tidemark.pipeline.ingest.source import pubsub_source as sources

    if environment is not None:
        archive = environment if is_address(environment) else str(Path(environment).resolve())
        carry_environment(session, archive)
    require_able(session, SOURCE)
    is_for_batches = is_out_of_reach_of_streams(session)
    ours = sources.TidemarkBatchSource if is_for_batches else sources.TidemarkDataSource
    session.dataSource.register(ours)
    try:
        session.dataSource.register(sources.PubSubBatchSource if is_for_batches else sources.PubSubDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    try:
        session.read.format(ours.name()).options(**PROBE).load().schema  # noqa: B018 (plans it)
    except PySparkException as error:
        where = "the Spark Connect server" if is_connected(session) else "this driver"
        raise ExecutorsUnable(
            f"Spark plans reads with a Python that cannot import tidemark ({_last_line(error)}): set "
            f"$PYSPARK_PYTHON to a Python that has tidemark, such as {sys.executable} on this machine, and "
            f"restart {where}. If the executors have another Python: {REMEDY}"
        ) from error


def is_new_enough(version: str) -> bool:
    """Return whether this version of Spark can run the source. A vendor's version may have letters: `4.1.0-amzn-0`."""
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST


def _last_line(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line or "No module" in line]
    return lines[-1] if lines else str(error)[:300]
