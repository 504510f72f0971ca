"""Spark sessions: their settings, and checks of the Spark Connect server."""

import os
import re
import socket
import ssl
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import grpc
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from tidemark.pipeline.errors import SparkUnreachable
from tidemark.pipeline.machine import is_loopback, listens
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.connector import check_connector, storage_config
from tidemark.pipeline.spark.executor_archive import (
    ARCHIVE,
    ARCHIVES,
    archives_config,
    carry_environment,
    check_archive,
    environment_config,
    identity,
)
from tidemark.pipeline.spark.java import set_java_home

ANSWERS_WITHIN_SECONDS = 5.0

if TYPE_CHECKING:
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (the variable's name)
"""The environment variable with the secret shared by server and clients. tidemark never writes the secret to disk."""

ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
"""gRPC's environment variable for a file with trusted certificate authorities, which replace gRPC's own."""

SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Up to 2 ** 18 groups of a task fit into Spark's fast map, such as each stream in each window of an hour. The
    # default is 2 ** 16, and Spark puts further groups into a slower map.
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "18",
}
"""Session settings that computing windows needs, on any Spark."""

WORKERS = {"spark.python.daemon.module": "tidemark.pipeline.compute.worker_daemon"}
"""Spark settings that make Python workers start with the modules for micro-batches already imported. Spark ends idle
workers after a minute, and importing the modules again takes longer than computing a small window."""


SESSION_TIMEOUT = "25h"
"""Maximum idle time of a session on a Spark Connect server that tidemark starts. It is more than a day, so that a
session survives between the runs of daily windows."""

GENERATIONS = 50
"""Maximum number of shared session ids that `shared_session` tries, to find one that the server has not closed. A
server never reopens a closed session, and remembers the last thousand closed ones."""


def _of_a_driver(settings: Settings) -> dict[str, str]:
    """Return the settings of a driver that tidemark starts. The driver listens only on loopback.

    - A local Spark gets the settings WORKERS, if its workers run this process's Python. Another Python may lack
      tidemark, which these settings need.
    - Executors on a cluster get tidemark from the archive for executors, if there is one. Each executor unpacks it in
      its working folder, where the workers of streaming queries look for it.
    """
    chosen, archive, is_local = settings.spark, settings.spark.executor_environment, _is_local(settings)
    is_ours = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    carried: dict[str, str] = {}
    if archive is not None and not is_local:
        carried = {ARCHIVE: archive, **archives_config(archive, chosen.config.get(ARCHIVES, ""))}
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        **(WORKERS if is_local and is_ours else {}),
        **SESSION,
        **storage_config(settings),
        **chosen.config,
        **carried,
    }


def _is_local(settings: Settings) -> bool:
    return settings.spark_master.startswith("local")


def session_config(settings: Settings) -> dict[str, str]:
    """Return the configuration of a Spark Connect client's session. If `spark.remote` is empty, return that of a
    classic session. A local classic session needs no archive, because its executors run the driver's Python."""
    chosen, archive = settings.spark, settings.spark.executor_environment
    runs_here = chosen.is_classic and _is_local(settings)
    executors = {} if archive is None or runs_here else environment_config(archive)
    if not chosen.is_classic:
        # A client may set only session settings: the rest belongs to the server.
        own = {key: value for key, value in chosen.config.items() if key.startswith("spark.sql.")}
        return {"spark.remote": chosen.remote or "", **SESSION, **executors, **own}
    return {
        "spark.master": settings.spark_master,
        "spark.app.name": "tidemark",
        "spark.driver.memory": chosen.driver_memory,
        **_of_a_driver(settings),
        **executors,
    }


def server_config(settings: Settings, scratch: Path) -> dict[str, str]:
    """Return the configuration of the Spark Connect server that tidemark starts. The server listens only on loopback,
    and keeps its files in `scratch`."""
    _, port = host_and_port(settings.spark.remote)
    return {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.session.manager.defaultSessionTimeout": SESSION_TIMEOUT,
        # Throughput matters here, not the latency of a single response.
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        **_of_a_driver(settings),
    }


def shared_session(config: Mapping[str, str]) -> SparkSession:
    """Return the session with this configuration on a Spark Connect server. All processes with the same configuration
    share the session.

    With a session per run, Spark would start new Python workers each time, which costs seconds, and would keep a
    process per session. Stopping the client leaves the session on the server. To interrupt only this process's calls,
    tag them. If `spark.remote` names a session id, that session is used. Raises SparkUnreachable if it is closed. If
    the server has closed GENERATIONS shared sessions (it closes idle ones), each call returns a new unshared one.
    """
    remote, archive = config["spark.remote"], config.get(ARCHIVE)
    what = sorted(config.items()) if archive is None else [*sorted(config.items()), identity(archive)]
    own: dict[str, str | int | float | bool | None] = {key: config[key] for key in config if key != "spark.remote"}
    shared = [uuid.uuid5(uuid.NAMESPACE_OID, repr((what, generation))) for generation in range(GENERATIONS)]
    for name in (*shared, uuid.uuid4()):
        builder = SparkSession.builder.config("spark.remote", with_session(remote, name))
        session: SparkSession = builder.create()
        session.release_session_on_close = name not in shared  # type: ignore[attr-defined]
        try:
            session.range(0).schema  # noqa: B018 (a call that a closed session refuses)
        except SparkConnectGrpcException as error:
            session.stop()
            if "SESSION_CLOSED" not in str(error):
                raise
            continue
        session = builder.config(map=own).getOrCreate()
        if archive is not None:
            carry_environment(session, archive)
        return session
    raise SparkUnreachable(
        f"{without_options(remote)} has closed the session that spark.remote names; name another session, or none"
    )


def classic_session(config: Mapping[str, str], others: SparkSession | None = None) -> SparkSession:
    """Return a session whose driver is this process. If other code in this process has a session (`others`), return
    a new session, and leave the other one as it is. Raises ToolMissing if Java or the connector is missing, and
    InvalidSettings if the archive for executors is unusable."""
    check_connector(config)
    check_archive(config)
    set_java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for its Python workers
    session: SparkSession
    if others is None:
        session = SparkSession.builder.config(map={**config}).getOrCreate()
    else:
        session = others.newSession()
        for key in filter(session.conf.isModifiable, config):
            session.conf.set(key, config[key])
    if is_address(archive := config.get(ARCHIVE, "")):
        carry_environment(session, archive)
    return session


def cores_of(spark: SparkSession) -> int:
    """Return the number of tasks that Spark computes in parallel: its slots, but with a local master on this machine no
    more than there are processors. A reader that waits takes a slot, so a local master may have more slots."""
    is_here = "connect" not in type(spark).__module__ or is_loopback(spark.client.host)
    local = local_slots(spark.conf.get("spark.master", "") or "") if is_here else None
    return slots_of(spark) if local is None else min(local, os.cpu_count() or 2)


def slots_of(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs in parallel. Unset settings count as 1 executor with 2 cores."""
    conf = spark.conf
    master = conf.get("spark.master", "") or ""
    if (local := local_slots(master)) is not None:
        return local
    return int(conf.get("spark.executor.instances", "1") or 1) * int(conf.get("spark.executor.cores", "2") or 2)


def local_slots(master: str) -> int | None:
    """Return the number of tasks that Spark runs in parallel with a local master; None for another master."""
    if (local := re.fullmatch(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?", master)) is None:
        return None
    return os.cpu_count() or 2 if local[1] == "*" else int(local[1] or 1)


def with_session(remote: str, name: uuid.UUID) -> str:
    """Return the address with the session id `name`. If the address has an id already, return it unchanged."""
    if "session_id=" in remote:
        return remote
    return f"{remote};session_id={name}" if "/;" in remote else f"{remote.rstrip('/')}/;session_id={name}"


def host_and_port(remote: str | None) -> tuple[str, int]:
    """Return the host and the port of a Spark Connect address, by default `localhost` and 15002."""
    address = urlparse(remote or "")
    return address.hostname or "localhost", address.port or 15002


def without_options(remote: str) -> str:
    """Return a Spark Connect address without its options, which may contain a token."""
    return remote.partition("/;")[0]


def check_answers(remote: str) -> None:
    """Raise SparkUnreachable if nothing listens at `remote`, such as `sc://localhost:15002`, or if its TLS handshake
    fails. Without this check, the Spark client would retry for ten minutes before it reports an error."""
    host, port = host_and_port(remote)
    try:
        with socket.create_connection((host, port), timeout=ANSWERS_WITHIN_SECONDS) as connection:
            if speaks_tls(remote):
                _shake_hands(connection, host)
    except ssl.SSLError as error:
        raise SparkUnreachable(
            f"TLS with {without_options(remote)} fails ({error}): the server must speak TLS and HTTP/2, with a "
            f"certificate that names {host} and is signed by an authority that gRPC trusts; to trust another "
            f"authority, set ${ROOTS} to its file. Nothing was written"
        ) from error
    except OSError as error:
        raise SparkUnreachable(
            f"no Spark Connect server answers at {without_options(remote)} ({error}); start one with `tidemark up`, or "
            'set spark.remote to your server\'s address, or to "" for a classic session. Nothing was written'
        ) from error


def refuse_other_token(remote: str) -> None:
    """Raise SparkUnreachable if the server at the address refuses this environment's token. Without TLS, also raise it
    if the server is not a Spark Connect server. Do nothing if no server answers: `check_answers` reports that."""
    if not listens(*host_and_port(remote)):
        return
    with _client_of(remote).toChannel() as channel:
        call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
        try:
            call(b"", timeout=ANSWERS_WITHIN_SECONDS)  # no session id, so it creates no session
        except grpc.RpcError as error:
            code, named = error.code(), without_options(remote)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise SparkUnreachable(
                    f"the Spark Connect server at {named} refuses the token of this environment: set ${TOKEN} to the "
                    "server's token, stop the server, or choose another address with spark.remote"
                ) from error
            if not speaks_tls(remote) and code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
                raise SparkUnreachable(
                    f"the server at {named} is not a Spark Connect server: stop it, or choose another "
                    "address with spark.remote"
                ) from error


def speaks_tls(remote: str) -> bool:
    """Return True if PySpark's client uses TLS for the address: the address requests TLS, or there is a token and the
    host is not localhost."""
    client = _client_of(remote)
    return bool(client.use_ssl or (client.token is not None and client.host != "localhost"))


def _client_of(remote: str) -> "DefaultChannelBuilder":
    """Parse a Spark Connect address as PySpark's client does."""
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # takes a while to import

    return DefaultChannelBuilder(remote)


def _shake_hands(connection: socket.socket, host: str) -> None:
    """Do a TLS handshake that accepts the same certificates as gRPC. By default, recent Python versions reject some of
    them as malformed. Raises SSLError if it fails."""
    known = Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
    context = ssl.create_default_context(cafile=os.environ.get(ROOTS) or known)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(connection, server_hostname=host) as secured:
        if secured.selected_alpn_protocol() != "h2":
            raise ssl.SSLError("it does not offer HTTP/2")
