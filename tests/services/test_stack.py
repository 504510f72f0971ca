"""Starting what stands in for Pub/Sub."""

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from dagster._core.telemetry_upload import is_running_in_test

from tests.official_emulator import free_port
from tests.services.test_processes import House
from tidemark.local.services import stack
from tidemark.local.services.own_files import given_home
from tidemark.local.services.processes import Supervisor
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import MetricsSettings, PubSubSettings, SparkSettings


@pytest.fixture
def started(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.supervisor.stop()


def settings_for(choice: str) -> Settings:
    pubsub = PubSubSettings(emulator_host=f"127.0.0.1:{free_port()}", emulator=choice)
    return Settings(pubsub=pubsub, spark=SparkSettings(remote=f"sc://localhost:{free_port()}"))


def topics(settings: Settings) -> list[str]:
    with publisher_client(settings.pubsub.emulator_host) as client:
        return [topic.name for topic in client.list_topics(project=f"projects/{settings.pubsub.project}", timeout=10)]


def sockets_hidden(process: psutil.Process) -> None:
    raise psutil.AccessDenied(process.pid)


def test_our_pubsub_is_started_and_comes_back_after_a_kill(started: House, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for("local")
    assert stack.emulator_is_absent(settings)
    stack.start_emulator(started.supervisor, settings)
    assert started.said == [f"starting tidemark's own Pub/Sub at {settings.pubsub.emulator_host}"]
    assert not stack.emulator_is_absent(settings)
    psutil.Process(started.supervisor.running[0].process.pid).kill()
    started.supervisor.running[0].process.wait(60)
    started.supervisor.restart_what_died()
    assert topics(settings) == [settings.pubsub.topic_path]
    assert "provisioning again" in started.said[-1]
    with pytest.raises(ServiceFailed, match="PubSub emulator ended at once"):  # the port is the other's
        stack.start_emulator(Supervisor(started.supervisor.state_folder / "other", SystemClock(), print), settings)
    monkeypatch.setattr(psutil.Process, "net_connections", sockets_hidden)
    assert started.supervisor.holds(stack.EMULATOR, 1)


def test_with_attach_neither_spark_nor_an_emulator_is_started(started: House) -> None:
    settings = settings_for("local")
    attached = settings.model_copy(update={"pubsub": settings.pubsub.model_copy(update={"attach": True})})
    assert (stack.is_ours_to_start(settings), stack.is_ours_to_start(attached)) == (True, False)
    with pytest.raises(ServiceFailed, match="the topic and the base subscription must exist before"):
        stack.start_stack(started.supervisor, attached, started.supervisor.state_folder / "tidemark.toml")
    assert started.supervisor.running == []


def test_the_daemon_starts_once_spark_answers(started: House, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[list[str]]()

    def spark_answers() -> bool:
        seen.append([one.spec.name for one in started.supervisor.running])
        return len(seen) > 1

    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    dagster = [stack.ServiceSpec(name, sleeping, Path()) for name in ("code server", "daemon")]
    spark = stack.ServiceSpec(stack.SPARK_CONNECT, sleeping, Path(), is_ready=spark_answers)
    for name, answer in (
        *(("emulator_is_absent", False), ("provision_here", Mock(warnings=[])), ("run_dagster", None)),
        *(("spark_server", spark), ("dagster_services", dagster)),
    ):
        monkeypatch.setattr(stack, name, Mock(return_value=answer))
    stack.start_stack(started.supervisor, settings_for("local"), started.supervisor.state_folder / "tidemark.toml")
    assert seen[:2] == [[stack.SPARK_CONNECT, "code server"]] * 2


@pytest.mark.parametrize(
    ("listen", "address", "has_page"),
    [
        (None, ("127.0.0.1", 9464), True),
        ("[::1]:9465", ("::1", 9465), True),
        ("0.0.0.0:9464", ("0.0.0.0", 9464), False),  # noqa: S104 (nothing listens)
    ],
)
def test_the_code_server_shows_the_page_on_loopback_alone(
    tmp_path: Path, listen: str | None, address: tuple[str, int], has_page: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Settings(metrics=MetricsSettings(listen=listen))
    for name, value in stack.dagster_environment(chosen, tmp_path / "tidemark.toml", tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_CONFIG", "")
    metrics = Settings().metrics
    assert (metrics.listens, metrics.address, metrics.has_page) == (True, address, has_page)
    assert not MetricsSettings().listens
    assert is_running_in_test(), "Dagster's daemon uploads and deletes what is in $DAGSTER_HOME/logs"


def test_ctrl_c_does_not_reach_what_creates_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dagster"
    program.write_text(f"#!{sys.executable}\nimport os\nassert os.getsid(0) == os.getpid()\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    stack.run_dagster([], {}, tmp_path, otherwise="it shares the terminal's session")
    monkeypatch.setattr(stack, "DAGSTER_ENDS_WITHIN_SECONDS", 0.001)
    with pytest.raises(ServiceFailed, match="no storage: `dagster` ran for over"):
        stack.run_dagster([], {}, tmp_path, otherwise="no storage")


def test_a_workspace_file_of_others_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workspace.yaml").write_bytes(b"# caf\xe9\n")
    monkeypatch.chdir(tmp_path)
    assert given_home() is None
