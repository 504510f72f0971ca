"""The Spark Connect server that tidemark starts: on loopback, behind a token, and gone when it is stopped."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.official_emulator import free_port
from tests.spark.test_micro_batch import WINDOWS, House
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import TOKEN, is_ours_to_start, spark_server
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import with_session

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


def client(
    settings: Settings, token: str = SECRET, program: str = "connect_client", *more: str
) -> "subprocess.CompletedProcess[str]":
    """A program of this folder, as a client of the server."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.spark.{program}", settings.spark.remote or "", *more],
        env={**os.environ, TOKEN: token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_client_with_the_token_gets_the_rows_that_a_classic_session_gets(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    here, there = House(tmp_path / "here", spark), House(tmp_path / "there", spark)
    for house in (here, there):
        house.land(("a", -30), ("a", 0), ("a", 30), ("a", 119.9), ("b", 310))
        house.land(("a", 30))  # delivered again
    answer = client(server[0], SECRET, "connect_client", str(there.folder))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == {"groups": 10, "rows": 4}
    here.compute(WINDOWS)
    assert there.rows() == here.rows()


def test_a_client_with_another_token_is_refused(server: Server) -> None:
    answer = client(server[0], "another")
    assert answer.returncode != 0
    assert "UNAUTHENTICATED" in answer.stderr or "Invalid authentication token" in answer.stderr


def test_every_process_finds_the_same_session_and_its_workers_until_that_is_closed(server: Server) -> None:
    before = daemons_of(server[1])
    said = client(server[0], SECRET, "sharing_client")
    assert said.returncode == 0, said.stderr
    first, second, after_it_was_closed = json.loads(said.stdout)
    assert first == second
    assert after_it_was_closed != first
    assert len(daemons_of(server[1]) - before) == 2  # one a session, however many clients it had
    names = {connect.partition("session_id=")[2] for connect in map(_named, ("sc://a:1", "sc://a:1/", "sc://a:1/;x=y"))}
    assert names == {str(NAME)}
    assert _named("sc://a:1/;session_id=mine") == "sc://a:1/;session_id=mine"


def test_what_a_cancelled_run_started_is_ended_although_its_session_stays(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "task"
    said = client(server[0], SECRET, "interrupted_client", str(file))
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
