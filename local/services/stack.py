"""The services of `tidemark up` in start order: an emulator if the settings name one, Spark Connect, and Dagster."""

import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark

from tidemark.local.services.emulator_choice import choose_emulator
from tidemark.local.services.own_files import CODE_PORT, SPARK_CONNECT, WORKSPACE, dagster_home
from tidemark.local.services.processes import ServiceSpec, Supervisor
from tidemark.pipeline.errors import InvalidSettings, ServiceFailed
from tidemark.pipeline.machine import is_loopback, listens
from tidemark.pipeline.pubsub.connection import refuse_foreign_server
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LISTEN
from tidemark.pipeline.spark.connector import JAR_SIZE, JAR_URL, connector_file, fetch, is_fetched, wants_connector
from tidemark.pipeline.spark.executor_archive import check_archive
from tidemark.pipeline.spark.java import java_home
from tidemark.pipeline.spark.session import TOKEN as TOKEN
from tidemark.pipeline.spark.session import host_and_port, refuse_other_token, server_config, without_options

DEFINITIONS = "tidemark.assets.location"
CODE_SERVER = "tidemark.resources.code_server"
DAEMON = "tidemark.resources.daemon"
WEBSERVER = "tidemark.resources.webserver"
DAGSTER_ENDS_WITHIN_SECONDS = 120
CODE_SERVER_THREADS = 16
"""Maximum number of concurrent calls to the code server. Sensors that wait for their next tick occupy some of them."""

GIVES_MEMORY_BACK = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "_RJEM_MALLOC_CONF": "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0",
}
"""Environment variables that make Dagster's processes return memory after a tick. By default, each memory arena of
glibc and jemalloc (several per core) and each thread's pool in Arrow would keep as much memory as the largest tick
needs. The Delta library uses jemalloc. The fixed threshold makes glibc return large arrays at once."""

LISTEN_AT = "TIDEMARK_METRICS__LISTEN"
"""The environment variable that sets `metrics.listen`."""

EMULATOR, WARM_UP = "PubSub emulator", "Spark warm-up"

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def dagster_environment(settings: Settings, config: Path, home: Path) -> dict[str, str]:
    """Return the environment of Dagster's processes. It includes the paths of the settings file and Dagster's storage,
    and the address of the status page and health check."""
    return {
        LISTEN_AT: settings.metrics.listen or LISTEN,
        "DAGSTER_HOME": str(home),
        "TIDEMARK_CONFIG": str(config),
        "TIDEMARK_DAGSTER_STORAGE": settings.dagster.storage,
        CODE_PORT: str(settings.dagster.code_port),
        # Even with telemetry off, Dagster's daemon uploads and deletes the files in $DAGSTER_HOME/logs, maybe ours.
        "DAGSTER_DISABLE_TELEMETRY": "1",
        # gRPC's fork handlers abort some of the forks by which PySpark starts a JVM. Nothing here uses gRPC in a fork.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        **{name: os.environ.get(name, value) for name, value in GIVES_MEMORY_BACK.items()},
    }


def emulator_is_absent(settings: Settings) -> bool:
    """Return True if the settings name an emulator on this machine, and nothing listens at its address."""
    host, _, port = (settings.pubsub.emulator_host or "").rpartition(":")
    return is_loopback(host) and not listens(host, int(port))


def start_emulator(supervisor: Supervisor, settings: Settings) -> None:
    """Start the emulator that the settings choose. A restarted emulator has lost its state, so the topic and the
    subscriptions are then provisioned again."""
    host, _, port = (settings.pubsub.emulator_host or "").rpartition(":")

    def provision_again() -> None:
        supervisor.say("the emulator restarted empty: provisioning again; messages that had not landed are lost")
        provision_here(settings, supervisor.clock)

    chosen = choose_emulator(settings.pubsub.emulator)
    supervisor.say(f"starting {chosen.name} at {host}:{port}")
    supervisor.start(
        ServiceSpec(
            name=EMULATOR,
            command=chosen.command(host, int(port)),
            folder=supervisor.state_folder,
            is_ready=lambda: listens(host, int(port)) and supervisor.holds(EMULATOR, int(port)),
            when_back=provision_again,
        )
    )


def start_stack(supervisor: Supervisor, settings: Settings, config: Path) -> None:
    """Start each required service that is not running yet. On an emulator, also provision the subscriptions.

    Raises ServiceFailed (with the end of a log if a service does not start); the caller must then stop the supervisor.
    Raises ToolMissing, before anything is started, if Spark's Cloud Storage connector cannot be downloaded.
    """
    home = dagster_home(settings)
    have_connector(supervisor, settings)
    Path(settings.dagster.storage).mkdir(parents=True, exist_ok=True)
    if emulator_is_absent(settings):
        if settings.pubsub.attach:
            raise ServiceFailed(
                f"nothing answers at {settings.pubsub.emulator_host}, "
                "but with pubsub.attach, the topic and the base subscription must exist before tidemark starts. "
                "Start the emulator (`tidemark pubsub`), and create both"
            )
        start_emulator(supervisor, settings)
    if settings.emulated:
        for line in provision_here(settings, supervisor.clock).warnings:
            supervisor.say(line)
    environment = dagster_environment(settings, config, home)
    if starts_spark := is_ours_to_start(settings):
        supervisor.say(f"starting Spark Connect at {without_options(settings.spark.remote or '')}")
        token = token_environment()
        environment |= token
        supervisor.start(spark_server(settings, supervisor.state_folder, token), wait=False)
    refuse_taken_ports(settings)
    supervisor.say(f"starting Dagster; its UI will be at {settings.dagster.own_ui}")
    # One process creates the storage's tables first: several that start at once would conflict.
    run_dagster(["instance", "info"], environment, home, otherwise="Dagster cannot create its storage")
    code_server, *others = dagster_services(settings, environment, home)
    supervisor.start(code_server, wait=False)
    if starts_spark:  # it must answer before the daemon's first ticks request runs
        supervisor.wait_until_ready(SPARK_CONNECT)
    for spec in others:
        supervisor.start(spec, wait=False)
    for one in list(supervisor.running):
        supervisor.wait_until_ready(one.spec.name)
    if not settings.spark.is_classic and not settings.pubsub.attach:
        warm_up = [sys.executable, "-m", "tidemark.pipeline.spark.warm_up"]
        supervisor.start(ServiceSpec(WARM_UP, warm_up, home, environment, ends=True), wait=False)


def have_connector(supervisor: Supervisor, settings: Settings) -> None:
    """Download the Cloud Storage connector if a Spark started here needs one and the cache has none. Raises
    ToolMissing if the download fails."""
    is_needed = not settings.pubsub.attach and runs_spark_here(settings) and wants_connector(settings)
    if not is_needed or is_fetched(connector_file()):
        return
    supervisor.say(f"fetching the Cloud Storage connector for Spark, {JAR_SIZE >> 20} MiB, from {JAR_URL}")
    said = 0

    def progress(done: int, of: int) -> None:
        nonlocal said
        if done * 4 // of > said:
            said = done * 4 // of
            supervisor.say(f"fetched {25 * said} % of the connector")

    fetch(supervisor.clock, progress=progress)


def dagster_services(settings: Settings, environment: dict[str, str], home: Path) -> list[ServiceSpec]:
    """Return the specs of Dagster's code server, its daemon (which ticks the sensors), and its UI."""
    code_port = settings.dagster.code_port

    def service(name: str, module: str, arguments: list[str], is_ready: Callable[[], bool]) -> ServiceSpec:
        command = [sys.executable, "-m", module, *arguments]
        return ServiceSpec(name, command, home, environment, is_ready, ready_within_seconds=120)

    code = ["-m", DEFINITIONS, "-h", "127.0.0.1", "-p", str(code_port), "--max-workers", str(CODE_SERVER_THREADS)]
    daemon = ["run", "-w", str(home / WORKSPACE)]
    return [
        service("Dagster code server", CODE_SERVER, code, lambda: listens("127.0.0.1", code_port)),
        service("Dagster daemon", DAEMON, daemon, lambda: listens("127.0.0.1", code_port)),
        service("Dagster webserver", WEBSERVER, [], lambda: _answers(f"{settings.dagster.own_ui}/server_info")),
    ]


def run_dagster(arguments: list[str], environment: Mapping[str, str], home: Path, *, otherwise: str) -> None:
    """Run the program `dagster` until it ends, in a separate session, so that Ctrl-C cannot make it fail. If it fails,
    raise ServiceFailed with the message `otherwise` and the end of the program's stderr."""
    try:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "dagster"), *arguments],
            cwd=home,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=DAGSTER_ENDS_WITHIN_SECONDS,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceFailed(f"{otherwise}: `dagster` ran for over {error.timeout:.0f} s") from error
    if done.returncode:
        raise ServiceFailed(f"{otherwise}: {done.stderr.strip()[-2000:]}")


def token_environment() -> dict[str, str]:
    """Return the token for the Spark server and its clients, from the environment or newly generated."""
    return {TOKEN: os.environ.get(TOKEN) or secrets.token_urlsafe(32)}


def is_ours_to_start(settings: Settings) -> bool:
    """Return True if `spark.remote` is an address on this machine where nothing listens, and this pipeline computes
    windows."""
    host, port = host_and_port(settings.spark.remote)
    is_remote = not settings.spark.is_classic and not settings.pubsub.attach
    return is_remote and host in ("localhost", "127.0.0.1") and not listens("127.0.0.1", port)


def runs_spark_here(settings: Settings) -> bool:
    """Return True if Spark's driver runs on this machine: in a run's process, or as the server that tidemark starts."""
    return settings.spark.is_classic or is_ours_to_start(settings)


def own_spark_port(settings: Settings) -> int:
    """Return the port of the Spark Connect server that tidemark starts. Raises InvalidSettings if `spark.remote` names
    a host other than localhost."""
    host, port = host_and_port(settings.spark.remote)
    if host != "localhost":
        raise InvalidSettings(
            f"spark.remote = {without_options(settings.spark.remote or '')!r}: write sc://localhost:PORT, because "
            "the server that tidemark starts has no TLS, and clients require TLS for any other host name"
        )
    return port


def spark_server(settings: Settings, scratch: Path, token: dict[str, str]) -> ServiceSpec:
    """Return the spec of the Spark Connect server, whose process is the JVM itself. Raises InvalidSettings if
    `spark.remote` names a host other than localhost, or if the archive for executors is unusable."""
    port = own_spark_port(settings)
    home, config = Path(pyspark.__file__).parent, server_config(settings, scratch)
    check_archive(config)
    return ServiceSpec(
        name=SPARK_CONNECT,
        command=[
            str(home / "bin" / "spark-submit"),
            *("--class", SERVER_CLASS, "--name", "tidemark"),
            *("--master", settings.spark_master, "--driver-memory", settings.spark.driver_memory),
            *(part for key, value in config.items() for part in ("--conf", f"{key}={value}")),
            "spark-internal",
        ],
        environment={
            **token,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),  # for Python workers of the server
        },
        is_ready=lambda: listens("127.0.0.1", port),
        ready_within_seconds=120,
        folder=scratch,
    )


def refuse_taken_ports(settings: Settings) -> None:
    """Raise ServiceFailed if one of Dagster's ports is in use."""
    for name in ("code_port", "web_port"):
        port = getattr(settings.dagster, name)
        if listens("127.0.0.1", port):
            raise ServiceFailed(
                f"something listens on port {port} already: stop it, or choose another port with dagster.{name} in "
                f"the settings or $TIDEMARK_DAGSTER__{name.upper()}. A second pipeline on this machine needs other "
                "ports: `tidemark init --ports 24000 FOLDER` writes settings with new ports"
            )


def refuse_foreign_servers(settings: Settings) -> None:
    """Raise PubSubError if the server at the emulator's address is not Pub/Sub. Raise SparkUnreachable if the server at
    Spark's address is not Spark Connect, or requires a different token."""
    refuse_foreign_server(settings.pubsub.emulator_host)
    if not settings.spark.is_classic and not settings.pubsub.attach:
        refuse_other_token(settings.spark.remote or "")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 (an http address of our own)
            return bool(response.status == 200)
    except OSError:
        return False
