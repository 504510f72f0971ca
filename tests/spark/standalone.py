"""A standalone cluster on loopback, and a Connect server on it: a master and workers, each a JVM of its own.

    with cluster(folder) as spread:                            # executors that lack tidemark
        settings = Settings(spark=spread.classic())            # for a session of this process, or
        with connect_server(folder, spread) as address: ...    # for clients of a server on the same cluster
        spread.kill_worker(0)

A process holds one kind of session: clients of a Connect server are programs of their own (`cluster_client.py`).
"""

import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import pyspark

from tests.cache import cache, made_once
from tests.official_emulator import HOST, free_port
from tests.programs import install
from tidemark.local.services.processes import ServiceSpec, Supervisor, listens
from tidemark.local.services.stack import TOKEN, spark_server
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.java import java_home

READY_WITHIN_SECONDS = 90
WORKERS = 2
SECRET = "a secret of these tests"  # noqa: S105 (nobody else's)
SMALL = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", "spark.executor.cores": "1"}
OF_PYSPARK = ("pandas", "pyarrow", "numpy")
"""What PySpark itself needs of an executor's Python. PySpark's own modules come with Spark, as on any cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that runs: its `spark://…`, and what stops it. The folder of a worker's executors is
    `folder / "worker-<number>"`, with one for each: `app-…/<number>`."""

    master: str
    folder: Path
    supervisor: Supervisor

    def classic(self, **more: object) -> SparkSettings:
        """The settings of a session whose driver is this process."""
        return SparkSettings.model_validate({"remote": None, "config": {**SMALL, "spark.master": self.master}, **more})

    def connected(self, **more: object) -> SparkSettings:
        """The settings of a Connect server on this cluster, at a port of its own."""
        return self.classic(remote=f"sc://localhost:{free_port()}", **more)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker, its executors and their Python processes, as if its machine were gone."""
        name = f"worker-{number}"
        (process,) = [one.process for one in self.supervisor.running if one.spec.name == name]
        lost = [process, *process.children(recursive=True)]
        for one in lost:
            one.kill()
        psutil.wait_procs(lost)

    def restart_worker(self, number: int) -> None:
        """Start a worker that was killed again, and wait until the master knows it."""
        self.supervisor.log_file(f"worker-{number}").write_text("")
        self.supervisor.restart_what_died()
        self.supervisor.wait_until_ready(f"worker-{number}")

    def workers_that_ran(self) -> set[str]:
        """The names of the workers that started an executor."""
        return {folder.parents[1].name for folder in self.folder.glob("worker-*/app-*/*")}


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of two workers until the block is left. The machines' own Python is `bare_python`: `$PYSPARK_PYTHON` in
    the workers' environment names it. Each worker has one core and 1 GB."""
    supervisor = Supervisor(folder / "services", SystemClock(), lambda _: None)
    try:
        yield Cluster(_started(supervisor, folder), folder, supervisor)
    finally:
        supervisor.stop()


@contextmanager
def connect_server(folder: Path, on: Cluster, spark: SparkSettings | None = None) -> Iterator[str]:
    """The address of a Connect server that asks for SECRET, until the block is left."""
    spark = spark or on.connected()
    supervisor = Supervisor(folder / "server", SystemClock(), lambda _: None)
    try:
        supervisor.start(spark_server(Settings(spark=spark), folder, {TOKEN: SECRET}))
        yield spark.remote or ""
    finally:
        supervisor.stop()


def bare_python() -> Path:
    """A Python like this one with what PySpark needs, and without tidemark. It is made once, in the cache."""
    versions = [f"{name}=={metadata.version(name)}" for name in OF_PYSPARK]
    named = "-".join([f"{sys.version_info.major}.{sys.version_info.minor}", *(one.split("==")[1] for one in versions)])
    folder = cache() / f"bare-python-{named}"
    with made_once(folder) as making:
        if making is not None:
            made = making / folder.name
            venv.create(made)
            install(made / "bin" / "python", *versions)
            made.rename(folder)  # only its scripts know where it was made
    return folder / "bin" / "python"


def _started(supervisor: Supervisor, folder: Path) -> str:
    port = free_port()
    arguments = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
    supervisor.start(_daemon("master", "master.Master", arguments, folder, {}, lambda: listens(HOST, port)))
    url = f"spark://{HOST}:{port}"
    for number in range(WORKERS):
        name = f"worker-{number}"
        arguments = ["--host", HOST, "--webui-port", str(free_port()), "--cores", "1", "--memory", "1g"]
        log = supervisor.log_file(name)
        supervisor.start(
            _daemon(
                name,
                "worker.Worker",
                [*arguments, "--work-dir", str(folder / name), url],
                folder,
                {"PYSPARK_PYTHON": str(bare_python())},
                lambda log=log: "Successfully registered" in log.read_text(errors="replace"),  # type: ignore[misc]
            ),
            wait=False,
        )
    for number in range(WORKERS):
        supervisor.wait_until_ready(f"worker-{number}")
    return url


def _daemon(
    name: str,
    main: str,
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str],
    is_ready: Callable[[], bool],
) -> ServiceSpec:
    home = Path(pyspark.__file__).parent

    return ServiceSpec(
        name=name,
        command=[str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments],
        environment={
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            **environment,
        },
        is_ready=is_ready,
        ready_within_seconds=READY_WITHIN_SECONDS,
        folder=folder,
    )
