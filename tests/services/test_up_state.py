"""`tidemark up` seen from outside: over a real supervisor in a process of its own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from tests.official_emulator import free_port
from tests.services.test_processes import FOR_EVER, is_alive, until
from tidemark.local.services import up_state as module
from tidemark.local.services.processes import STATE_FILE, Noted, Supervisor, noted_file, noted_in
from tidemark.local.services.up_state import stop_up, up_state
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import AlreadyRunning, ServiceFailed
from tidemark.pipeline.machine import process_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, SparkSettings

UP = """
import signal, sys, threading
from pathlib import Path
from tidemark.pipeline.clock import SystemClock
from tidemark.local.services.processes import ServiceSpec, Supervisor
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
supervisor = Supervisor(Path(sys.argv[1]), SystemClock(), print)
supervisor.take_over()
command = [sys.executable, "-c", "import time; time.sleep(300)"]
supervisor.start(ServiceSpec("Spark Connect", command, Path(sys.argv[1])))
supervisor.start(ServiceSpec("Spark warm-up", [sys.executable, "-c", ""], Path(sys.argv[1]), ends=True))
supervisor.running[-1].process.wait()
print("started", flush=True)
while not ended.wait(0.1):  # a signal to another thread does not wake the main thread
    pass
if sys.argv[2] == "deaf":
    ended.clear()
    ended.wait()
supervisor.stop()
"""


@dataclass
class Up:
    """A stand-in for `tidemark up` with one service, and what `--stop` said."""

    settings: Settings
    said: list[str] = field(default_factory=list)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, how: str = "") -> int:
        command = [sys.executable, "-c", UP, str(self.settings.dagster.state_folder), how]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"started\n"
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        stop_up(self.settings, SystemClock(), self.said.append)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    dagster = DagsterSettings(storage=str(tmp_path / "state" / "dagster"))
    up = Up(Settings(dagster=dagster, spark=SparkSettings(remote=f"sc://localhost:{free_port()}")))
    yield up
    if up.process is not None:
        up.kill()
        up.process.stdout.close()
    for one in noted_in(up.settings.dagster.state_folder).alive().values():
        psutil.Process(one.process).kill()


def test_what_runs_is_told_and_stopped(up: Up, tmp_path: Path) -> None:
    pid = up.start()
    owner, services = up_state(up.settings)
    assert owner.process == pid
    assert [(one.name, one.runs, one.is_ready) for one in services] == [("Spark Connect", True, False)]
    with pytest.raises(AlreadyRunning, match=f"^already running as process {pid} on .* since 20"):
        Supervisor(up.settings.dagster.state_folder, SystemClock(), print).take_over()
    copied = up.settings.model_copy(update={"dagster": DagsterSettings(storage=str(tmp_path / "copy" / "dagster"))})
    shutil.copytree(up.settings.dagster.state_folder, copied.dagster.state_folder)
    stop_up(copied, SystemClock(), up.said.append)
    assert is_alive(pid), "a copy of the folder claims nothing"
    os.kill(pid, signal.SIGSTOP)
    up.stop()
    assert up.said[1:] == [f"asking process {pid} to stop", "stopped"]
    assert up.said.pop(0) == f"nothing runs in {copied.dagster.state_folder}"
    assert not any(map(is_alive, (pid, services[0].process.process)))
    assert up_state(up.settings) == (None, [])
    up.stop()
    assert up.said[2:] == [f"nothing runs in {up.settings.dagster.state_folder}"]


def test_what_a_killed_one_has_left_is_told_and_ended(up: Up) -> None:
    up.start()
    up.kill()
    owner, (left,) = up_state(up.settings)
    assert (owner, left.runs) == (None, True)
    up.stop()
    assert up.said == [
        f"stopping Spark Connect (process {left.process.process}), left over from an earlier start",
        "stopped the services that an earlier `tidemark up` left running",
    ]
    assert not is_alive(left.process.process)
    assert not (up.settings.dagster.state_folder / STATE_FILE).exists()


def test_a_paused_process_is_not_ready_and_one_with_the_number_of_a_noted_one_is_not_touched(up: Up) -> None:
    folder = up.settings.dagster.state_folder
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", FOR_EVER]) as innocent:
        process = process_of(innocent.pid)
        noted_file(folder).write(Noted(None, {"A server": process}))
        innocent.send_signal(signal.SIGSTOP)
        os.waitpid(innocent.pid, os.WUNTRACED)
        assert [(one.runs, one.is_ready) for one in up_state(up.settings)[1]] == [(True, False)]
        innocent.send_signal(signal.SIGCONT)
        earlier = replace(process, started=process.started - 100)
        noted_file(folder).write(Noted(earlier, {"Spark Connect": earlier}))
        owner, (left,) = up_state(up.settings)
        assert (owner, left.runs) == (None, False)
        up.stop()
        assert is_alive(innocent.pid)
        innocent.kill()
    assert up.said == ["stopped the services that an earlier `tidemark up` left running"]


def test_one_that_does_not_end_is_said_with_what_to_do(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = up.start("deaf")
    monkeypatch.setattr(module, "STOPS_WITHIN_SECONDS", 0.5)
    monkeypatch.setattr(module, "SAY_EVERY_SECONDS", 0.0)
    with pytest.raises(ServiceFailed, match=rf"process {pid} has not ended within 0\.5 s.*`kill -9 {pid}`"):
        up.stop()
    assert "still running: Spark Connect" in up.said[1]
    assert is_alive(pid)
    up.process.send_signal(signal.SIGTERM)
    until("it has ended", lambda: not is_alive(pid))


@pytest.mark.parametrize("content", ["", "[[", "{}", '{"owner": 5, "services": 7}', '{"services": [[1]]}', '"text"'])
def test_a_damaged_note_tells_nothing_and_is_cleared(up: Up, content: str) -> None:
    folder = up.settings.dagster.state_folder
    folder.mkdir(parents=True)
    (folder / STATE_FILE).write_text(content)
    assert up_state(up.settings)[0] is None
    up.stop()
    assert not (folder / STATE_FILE).exists()
