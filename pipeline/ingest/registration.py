"""Registers `format("pubsub")` on a session that can run it, and says what is missing on one that cannot."""

import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 (what everybody calls it)

from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.ingest.pubsub_source import PubSubDataSource, PubSubStreamReader
from tidemark.pipeline.settings_types import is_address
from tidemark.pipeline.spark.environment import (
    ARCHIVES,
    FOLDER,
    carry_environment,
    is_connected,
    is_out_of_reach_of_streams,
)
from tidemark.pipeline.spark.executors import REMEDY, require_able

PROBE = {"project": "looked-at", "subscription": "looked-at", "lake": "file:///looked-at"}
"""Options that plan a read: its columns need neither Pub/Sub nor the lake."""


class PubSubBatchSource(PubSubDataSource):
    """The source for a session whose archive no streaming query would find: a stream is refused when it starts."""

    def streamReader(self, schema: T.StructType) -> PubSubStreamReader:  # noqa: ARG002, N802 (Spark's name)
        raise ExecutorsUnable(
            "a stream over Spark Connect cannot use an archive that the session sent: Spark unpacks it in the "
            "session's folder and starts a stream's readers in the executor's own. Start the server with "
            f"`--conf {ARCHIVES}=executors.tar.gz#{FOLDER}`, as `tidemark up` does with spark.executor_environment and "
            "spark.server_master, or install tidemark in the Python of Spark's executors. Nothing was pulled"
        )


def register(session: SparkSession, *, environment: str | None = None) -> None:
    """Register `format("pubsub")`. With `environment`, the archive that `tidemark pack` made, the executors need no
    tidemark of their own: a path on this machine, or an address that Spark's machines read.

    Limit: over Spark Connect, streams find the archive only if the server was started with it; else they are refused
    when they start, and batch reads work.
    Guarantee: on return the Python of the driver and of the executors that were asked can run the source. Raises
    ExecutorsUnable, within seconds once executors are there, which says what is missing; InvalidSettings for an archive
    that cannot be used. Nothing is pulled, and nothing is written.
    """
    if environment is not None:
        archive = environment if is_address(environment) else str(Path(environment).resolve())
        carry_environment(session, archive)
    require_able(session)
    session.dataSource.register(PubSubBatchSource if is_out_of_reach_of_streams(session) else PubSubDataSource)
    try:
        session.read.format(PubSubDataSource.name()).options(**PROBE).load().schema  # noqa: B018 (plans it)
    except PySparkException as error:
        where = "the Spark Connect server" if is_connected(session) else "this driver"
        raise ExecutorsUnable(
            f"Spark plans reads with a Python that cannot import tidemark ({_last_line(error)}): start {where} with "
            f"$PYSPARK_PYTHON naming one that has tidemark, as {sys.executable} has here. Executors may have another: "
            f"{REMEDY}"
        ) from error


def _last_line(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line or "No module" in line]
    return lines[-1] if lines else str(error)[:300]
