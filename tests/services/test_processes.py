"""The supervisor over real processes."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clock import until
from tidemark.local.services import processes
from tidemark.local.services.processes import STATE_FILE, ServiceSpec, Supervisor, noted_in
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ServiceFailed

FOR_EVER = "import time; time.sleep(300)"
WITH_A_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {FOR_EVER!r}])
print(child.pid, flush=True)
time.sleep(300)
"""
WITH_A_DISTANT_CHILD = WITH_A_CHILD.replace("])", "], start_new_session=True)")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class House:
    """A supervisor, what it said, and specs of tiny services."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.folder = folder
        self.supervisor = Supervisor(folder / "state", SystemClock(), self.said.append)

    def spec(self, name: str, program: str, **changes: Any) -> ServiceSpec:
        return ServiceSpec(
            name, [sys.executable, "-c", program], self.folder, **{"ready_within_seconds": 10.0} | changes
        )

    def pid(self, name: str) -> int:
        (pid,) = [one.process.pid for one in self.supervisor.running if one.spec.name == name]
        return pid

    def noted(self) -> dict[str, int]:
        return {name: one.process for name, one in noted_in(self.supervisor.state_folder).services.items()}

    def log(self, name: str) -> str:
        file = self.supervisor.log_file(name)
        return file.read_text() if file.exists() else ""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.supervisor.stop()


def test_a_service_that_ends_at_once_is_reported_with_the_end_of_its_log(house: House) -> None:
    program = "import sys; [print('line', n) for n in range(40)]; sys.exit('the port is taken')"
    with pytest.raises(ServiceFailed) as failed:
        house.supervisor.start(house.spec("A server", program, is_ready=lambda: False))
    lines = "\n".join(f"line {number}" for number in range(26, 40))
    log = f"{house.supervisor.state_folder}/logs/a-server.log"
    assert str(failed.value) == f"A server ended at once with code 1; the end of {log}:\n{lines}\nthe port is taken"


def test_a_service_that_died_is_started_again_and_the_others_are_left_alone(house: House) -> None:
    for name in ("one", "two"):
        house.supervisor.start(house.spec(name, FOR_EVER))
    one, two = house.pid("one"), house.pid("two")
    house.supervisor.restart_what_died()
    assert (house.pid("one"), house.said) == (one, [])
    psutil.Process(one).kill()
    until("one has ended", lambda: not is_alive(one))
    house.supervisor.restart_what_died()
    assert house.said == ["one ended with code -9: starting it again"]
    assert is_alive(house.pid("one"))
    assert house.pid("one") != one
    assert house.pid("two") == two
    assert house.noted() == {"one": house.pid("one"), "two": two}


def test_a_service_that_keeps_ending_is_a_failure(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RESTARTS_AT_MOST", 2)
    house.supervisor.start(house.spec("hopeless", "print('no use')"), wait=False)

    def ends_and_is_started_again() -> None:
        until("it has ended", lambda: house.supervisor.running[0].process.poll() is not None)
        house.supervisor.restart_what_died()

    for _ in range(2):
        ends_and_is_started_again()
    with pytest.raises(ServiceFailed, match=r"hopeless ended 3 times; the end of (?s:.*)no use"):
        ends_and_is_started_again()


def test_a_log_loses_its_older_half_while_its_service_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 1000)
    log, begun = house.supervisor.log_file("chatty"), "a line\n" * 20
    log.parent.mkdir(parents=True)
    log.write_text("earlier\n" * 110)
    wait = f"import os, time\nwhile not os.path.exists({str(house.folder / 'go')!r}): time.sleep(0.02)"
    house.supervisor.start(house.spec("chatty", f"print({begun!r}, end='', flush=True)\n{wait}\nprint('the end')"))
    until("it has begun", lambda: house.log("chatty").endswith(begun))
    for _ in range(2):
        house.supervisor.shorten_logs()
        assert house.log("chatty")[house.supervisor.running[0].log_from :] == begun
        assert 400 < log.stat().st_size <= 500
    (house.folder / "go").touch()
    until("it goes on", lambda: house.log("chatty").endswith(f"{begun}the end\n"))


@pytest.mark.parametrize(
    "why",
    [
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
        "java.net.BindException: Address already in use: Service 'sparkDriver' failed after 16 retries",
        "# There is insufficient memory for the Java Runtime Environment to continue.",
        "26/11/23 07:00:00 ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.",
    ],
)
def test_the_line_that_says_why_is_shown_although_a_stack_trace_follows(tmp_path: Path, why: str) -> None:
    log, frame = tmp_path / "spark-connect.log", "\tat org.apache.spark.Class.call(Class.scala:1)\n"
    log.write_text(f"26/11/23 06:59:59 INFO Server: all is well\n{why}\n{frame * 40}")
    assert processes.why_ended(log) == [why]
    shown = (frame * processes.LINES_AT_END).rstrip()
    assert processes.log_end(log) == f"{log} says why:\n{why}\nthe end of {log}:\n{shown}"


def test_stopping_ends_services_with_all_their_descendants(house: House) -> None:
    house.supervisor.start(house.spec("parent", WITH_A_DISTANT_CHILD))
    house.supervisor.start(house.spec("once", FOR_EVER, ends=True))
    until("the child runs", lambda: house.log("parent").strip().isdigit())
    child, parent = int(house.log("parent")), house.pid("parent")
    once = house.pid("once")
    assert is_alive(child)
    house.supervisor.stop()
    assert [pid for pid in (child, parent, once) if is_alive(pid)] == []
    assert not (house.supervisor.state_folder / STATE_FILE).exists()


def test_a_process_that_does_not_end_when_asked_is_killed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.local.services.processes.STOP_WITHIN_SECONDS", 0.5)
    house.supervisor.start(house.spec("deaf", DEAF))
    until("it is deaf", lambda: "deaf" in house.log("deaf"))
    pid = house.pid("deaf")
    house.supervisor.stop()
    assert not is_alive(pid)


ENDS = [Supervisor.restart_what_died, Supervisor.stop, Supervisor.take_over]


@pytest.mark.parametrize("end", ENDS, ids=["when it is started again", "when all is stopped", "by the next supervisor"])
def test_the_child_of_a_killed_service_is_ended(house: House, end: Callable[[Supervisor], None]) -> None:
    house.supervisor.start(house.spec("parent", WITH_A_CHILD))
    until("the child runs", lambda: house.log("parent").strip().isdigit())
    orphan, parent = int(house.log("parent")), house.pid("parent")
    psutil.Process(parent).kill()
    house.supervisor.running[0].process.wait()
    assert is_alive(orphan)
    end(house.supervisor)
    assert not is_alive(orphan)


def kill(house: House, name: str) -> None:
    pid = house.pid(name)
    psutil.Process(pid).kill()
    until("it has ended", lambda: not is_alive(pid))


def test_what_an_earlier_start_left_is_ended_from_the_last_to_the_first(house: House) -> None:
    for name in ("one", "two"):
        house.supervisor.start(house.spec(name, FOR_EVER))
    house.supervisor.take_over()
    assert [line.partition(" (")[0] for line in house.said] == ["stopping two", "stopping one"]


def test_a_folder_that_can_no_longer_be_written_ends_nothing_and_is_said_once(house: House) -> None:
    house.supervisor.take_over()
    house.supervisor.start(house.spec("one", FOR_EVER))
    folder = house.supervisor.state_folder
    shutil.rmtree(folder / "logs")
    (folder / "logs").touch()
    (folder / STATE_FILE).unlink()
    (folder / STATE_FILE).mkdir()
    for _ in range(2):
        kill(house, "one")
        house.supervisor.restart_what_died()
        assert is_alive(house.pid("one"))
    assert [line.partition(". ")[0] for line in house.said] == [
        "one ended with code -9: starting it again",
        f"{folder}/logs: File exists",
        "one ended with code -9: starting it again",
    ]
    (folder / STATE_FILE).rmdir()
    kill(house, "one")
    house.supervisor.restart_what_died()
    assert house.noted() == {"one": house.pid("one")}
