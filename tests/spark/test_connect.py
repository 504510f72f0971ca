"""The Spark Connect server that tidemark starts: on loopback, behind a token, and gone when it is stopped; and what is
said of an address that speaks TLS."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pyspark.sql import SparkSession

from tests.official_emulator import HOST, free_port
from tests.programs import ended
from tests.spark.test_micro_batch import WINDOWS, House
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import TOKEN, is_ours_to_start, spark_server
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import InvalidSettings, SparkUnreachable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import ROOTS, check_answers, with_session

NAME = uuid.UUID(int=1)
ENDED_WITHIN_SECONDS = 60
SECRET = "a secret of this test"  # noqa: S105 (nobody else's)

Server = tuple[Settings, psutil.Process, Supervisor]
"""How it is asked, its process, and what stops it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("spark")
    settings = Settings(
        spark=SparkSettings(remote=f"sc://localhost:{free_port()}", config={"spark.driver.memory": "1g"})
    )
    assert is_ours_to_start(settings)
    supervisor = Supervisor(folder, SystemClock(), lambda _: None)
    try:
        supervisor.start(spark_server(settings, folder, {TOKEN: SECRET}))
        yield settings, psutil.Process(supervisor.running[0].process.pid), supervisor
    finally:
        supervisor.stop()


def client(settings: Settings, program: str, argument: str, token: str = SECRET) -> "subprocess.CompletedProcess[str]":
    """A program of this folder, as a client of the server."""
    command = [sys.executable, "-m", f"tests.spark.{program}", settings.spark.remote or "", argument]
    return ended(command, variables={**os.environ, TOKEN: token})


def test_a_client_with_another_token_is_refused(server: Server) -> None:
    answer = client(server[0], "sharing_client", "", "another")
    assert answer.returncode != 0
    assert "UNAUTHENTICATED" in answer.stderr or "Invalid authentication token" in answer.stderr


def test_each_process_finds_one_session_and_classic_rows(server: Server, spark: SparkSession, tmp_path: Path) -> None:
    before = daemons_of(server[1])
    here, there = House(tmp_path / "here", spark), House(tmp_path / "there", spark)
    for house in (here, there):
        house.land(("a", -30), ("a", 0), ("a", 30), ("a", 119.9), ("b", 310))
        house.land(("a", 30))  # delivered again
    said = client(server[0], "sharing_client", str(there.folder))
    assert said.returncode == 0, said.stderr
    (first, second, *after_it_was_closed), rows = json.loads(said.stdout)
    here.compute(WINDOWS)
    assert (rows, there.rows()) == (4, here.rows())
    assert first == second
    assert len({first, *after_it_was_closed}) == 3
    assert len(daemons_of(server[1]) - before) == 1  # for both clients of the session
    names = {connect.partition("session_id=")[2] for connect in map(_named, ("sc://a:1", "sc://a:1/", "sc://a:1/;x=y"))}
    assert names == {str(NAME)}
    assert _named("sc://a:1/;session_id=mine") == "sc://a:1/;session_id=mine"


def test_what_a_cancelled_run_started_is_ended_although_its_session_stays(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "task"
    said = client(server[0], "interrupted_client", str(file))
    assert (said.returncode, said.stdout) == (0, "interrupted\n"), said.stderr
    until = time.monotonic() + ENDED_WITHIN_SECONDS
    while is_at_work(int(file.read_text())):
        assert time.monotonic() < until, "its task goes on"
        time.sleep(0.1)


def is_at_work(process_id: int) -> bool:
    """Whether a process runs. PySpark's daemon may leave one that has ended for a while before it asks how."""
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def daemons_of(server: psutil.Process) -> set[int]:
    """The processes that fork Python workers."""
    found = set()
    for one in server.children():
        with suppress(psutil.Error):  # it ends meanwhile
            if any("worker_daemon" in word for word in one.cmdline()):
                found.add(one.pid)
    return found


def _named(remote: str) -> str:
    return with_session(remote, NAME)


def test_an_address_that_the_client_would_want_tls_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="sc://localhost"):
        spark_server(Settings(spark=SparkSettings(remote="sc://127.0.0.1:15002")), tmp_path, {TOKEN: SECRET})


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate of this host that nobody else signed, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=spark")
    begins = datetime.now(UTC) - timedelta(hours=1)
    named = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    valid = builder.not_valid_before(begins).not_valid_after(begins + timedelta(days=1))
    made = valid.add_extension(named, critical=False)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "spark.pem"
    file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem) + key.private_bytes(pem, *plain))
    return file


@contextmanager
def proxy(certificate: Path, *protocols: str) -> Iterator[str]:
    """The address of something that speaks TLS and these protocols."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(list(protocols))
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as connection:
                connection.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"sc://{HOST}:{server.getsockname()[1]}/;use_ssl=true"
        thread.join(10)


def test_a_certificate_of_a_named_authority_is_accepted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS, str(certificate))
    with proxy(certificate, "h2") as remote:
        check_answers(remote)


def test_a_certificate_of_an_unknown_authority_is_said(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOTS, raising=False)
    with proxy(certificate, "h2") as remote, pytest.raises(SparkUnreachable, match=f"certificate.*{ROOTS}"):
        check_answers(remote)


def test_a_proxy_without_http_2_is_said_at_once(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS, str(certificate))
    with proxy(certificate, "http/1.1") as remote, pytest.raises(SparkUnreachable, match="does not offer HTTP/2"):
        check_answers(remote)
