"""The long-lived Spark Connect server, which spares each run the start of a JVM."""

import os
import secrets
import sys
from pathlib import Path
from urllib.parse import urlparse

import pyspark

from pipeline.errors import InvalidSettings
from pipeline.services.processes import ServiceSpec, listens
from pipeline.settings import Settings
from pipeline.spark.java import java_home
from pipeline.spark.session import server_config

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (the variable's name)
"""The environment variable that holds the secret shared by server and clients. It is never written to disk."""

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def token_environment() -> dict[str, str]:
    """The secret for the server and its clients: the environment's, else a new one."""
    return {TOKEN: os.environ.get(TOKEN) or secrets.token_urlsafe(32)}


def is_ours_to_start(settings: Settings) -> bool:
    """Whether `spark.remote` is an address of this machine where nothing listens yet."""
    if settings.spark.master is not None:
        return False
    address = urlparse(settings.spark.remote or "")
    return address.hostname in ("localhost", "127.0.0.1") and not listens("127.0.0.1", address.port or 15002)


def spark_server(settings: Settings, scratch: Path, token: dict[str, str]) -> ServiceSpec:
    """The server's process: the JVM itself, which SIGTERM ends. Raises InvalidSettings."""
    address = urlparse(settings.spark.remote or "")
    if address.hostname != "localhost":
        raise InvalidSettings(
            f"spark.remote = {settings.spark.remote!r}: for the server that tidemark starts write sc://localhost:PORT; "
            "with another name the client wants TLS"
        )
    port = address.port or 15002
    conf = [part for key, value in server_config(settings, scratch).items() for part in ("--conf", f"{key}={value}")]
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", SERVER_CLASS, "--name", "tidemark"),
        *("--master", settings.spark.server_master, "--driver-memory", settings.spark.driver_memory),
        *conf,
        "spark-internal",
    ]
    environment = {
        **token,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),  # for what runs in Python on it
    }
    return ServiceSpec(
        name="Spark Connect",
        command=command,
        environment=environment,
        is_ready=lambda: listens("127.0.0.1", port),
        ready_within_seconds=120,
        folder=scratch,
    )
