"""A standalone cluster on loopback, and a Connect server on it: a master and workers, each a JVM of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.official_emulator import HOST, free_port
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.services.processes import ServiceSpec, Supervisor, listens
from tidemark.pipeline.services.stack import TOKEN, spark_server
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.java import java_home

READY_WITHIN_SECONDS = 90
SECRET = "a secret of these tests"  # noqa: S105 (nobody else's)
SMALL = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a Connect server that asks for SECRET, on a cluster of two workers, until the block is left."""
    supervisor = Supervisor(folder / "services", SystemClock(), lambda _: None)
    try:
        master = start_cluster(supervisor, folder)
        address = f"sc://localhost:{free_port()}"
        spark = SparkSettings(remote=address, server_master=master, driver_memory="1g", config=SMALL)
        supervisor.start(spark_server(Settings(spark=spark), folder, {TOKEN: SECRET}))
        yield address
    finally:
        supervisor.stop()


def start_cluster(supervisor: Supervisor, folder: Path, *, workers: int = 2) -> str:
    """Start it; its `spark://…`. Each worker has one core and, in `folder`, a folder of its own, `worker-<number>`,
    with one for each executor: `app-…/<number>`. Stopping the supervisor ends them all."""
    port = free_port()
    arguments = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
    supervisor.start(_daemon("master", "master.Master", arguments, folder, lambda: listens(HOST, port)))
    url = f"spark://{HOST}:{port}"
    for number in range(workers):
        name = f"worker-{number}"
        arguments = ["--host", HOST, "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g"]
        log = supervisor.log_file(name)
        supervisor.start(
            _daemon(
                name,
                "worker.Worker",
                [*arguments, "--work-dir", str(folder / name), url],
                folder,
                lambda log=log: "Successfully registered" in log.read_text(errors="replace"),  # type: ignore[misc]
            ),
            wait=False,
        )
    for number in range(workers):
        supervisor.wait_until_ready(f"worker-{number}")
    return url


def _daemon(name: str, main: str, arguments: list[str], folder: Path, is_ready: Callable[[], bool]) -> ServiceSpec:
    home = Path(pyspark.__file__).parent
    return ServiceSpec(
        name=name,
        command=[str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments],
        environment={
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
        },
        is_ready=is_ready,
        ready_within_seconds=READY_WITHIN_SECONDS,
        folder=folder,
    )
