"""Which Spark a micro-batch runs on: the settings of a session, and whether its server answers."""

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlparse

from pipeline.errors import SparkUnreachable
from pipeline.lake.store.address import spark_storage_config
from pipeline.settings import Settings

ANSWERS_WITHIN_SECONDS = 5.0

SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "4",
    # A task writes a file for each of so many windows at once, instead of sorting its rows by window again.
    "spark.sql.maxConcurrentOutputFileWriters": "600",
    "spark.sql.parquet.compression.codec": "zstd",
}
"""Settings that the micro-batch relies on, on any Spark."""

IN_A_FOLDER = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "10000"}
"""Files on this disk are found faster by the driver than by a job; in a bucket each costs an answer."""


WORKERS = {"spark.python.daemon.module": "pipeline.spark.worker_daemon"}
"""Python workers that have imported what a micro-batch needs before they are forked. Spark ends them after a minute
without work, and imports take longer than a small window."""


def _of_workers(master: str) -> dict[str, str]:
    """For a Spark on this machine whose workers run the Python that runs this: elsewhere tidemark may be missing."""
    is_ours = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    return WORKERS if master.startswith("local") and is_ours else {}


def _of_the_session(settings: Settings) -> dict[str, str]:
    return SESSION if settings.lake.folder is None else {**SESSION, **IN_A_FOLDER}


def session_config(settings: Settings) -> dict[str, str]:
    """The configuration of a session: a Spark Connect client where `spark.master` is empty, else a classic one."""
    chosen = settings.spark
    if chosen.master is None:
        # A client may set only what belongs to a session: the rest is the server's.
        own = {key: value for key, value in chosen.config.items() if key.startswith("spark.sql.")}
        return {"spark.remote": chosen.remote or "", **_of_the_session(settings), **own}
    return {
        "spark.master": chosen.master,
        "spark.app.name": "tidemark",
        "spark.driver.memory": chosen.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        **_of_workers(chosen.master),
        **_of_the_session(settings),
        **spark_storage_config(settings.lake),
        **chosen.config,
    }


def server_config(settings: Settings, scratch: Path) -> dict[str, str]:
    """The configuration of the Spark Connect server that tidemark starts: on loopback alone, its own files in
    `scratch`."""
    _, port = host_and_port(settings.spark.remote)
    return {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        # Throughput counts here, not the latency of a single answer.
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        **_of_workers(settings.spark.server_master),
        **_of_the_session(settings),
        **spark_storage_config(settings.lake),
        **settings.spark.config,
    }


def host_and_port(remote: str | None) -> tuple[str, int]:
    """The host and the port of a Spark Connect address."""
    address = urlparse(remote or "")
    return address.hostname or "localhost", address.port or 15002


def check_answers(remote: str) -> None:
    """Raise SparkUnreachable, at once, where no Spark Connect server listens at an address such as
    `sc://localhost:15002`. The client itself would try for ten minutes before it says so."""
    try:
        socket.create_connection(host_and_port(remote), timeout=ANSWERS_WITHIN_SECONDS).close()
    except OSError as error:
        raise SparkUnreachable(
            f"no Spark Connect server answers at {remote} ({error}); start it with `tidemark up`, or set spark.remote "
            "to where yours runs, or spark.master for a classic session. Nothing was written"
        ) from error
