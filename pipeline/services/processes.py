"""Starting processes, keeping them alive, and stopping them by process id."""

import json
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipeline.clock import Clock
from pipeline.errors import ServiceFailed

STOP_WITHIN_SECONDS = 10.0
POLL_SECONDS = 0.2
RESTARTS_AT_MOST = 20
"""How often a service that ends by itself is started again before that is called a failure."""

LAST_WORDS_LINES = 15
STATE_FILE = "services.json"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process to run: what starts it, and how one knows that it serves.

    `when_back` is called once it serves again after it died: what it held is to be made anew.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_ready: Callable[[], bool]
    ready_within_seconds: float
    folder: Path
    when_back: Callable[[], None] | None = None


@dataclass(slots=True)
class Running:
    """A service that was started."""

    spec: ServiceSpec
    process: "subprocess.Popen[bytes]"
    restarts: int = 0


@dataclass
class Supervisor:
    """Starts services in the order given, restarts what dies, and stops them all in the reverse order.

    What runs is noted in `state_folder`, so that the next supervisor stops what a killed one left behind.
    `say` is told what happens, a sentence at a time.
    """

    state_folder: Path
    clock: Clock
    say: Callable[[str], None]
    running: list[Running] = field(default_factory=list)
    once: list[Running] = field(default_factory=list)

    def start(self, spec: ServiceSpec, *, wait: bool = True) -> None:
        """Start a service. Raises ServiceFailed, with the end of its log, if it ends or is not ready in time."""
        self.running.append(Running(spec, self._spawn(spec)))
        self._note()
        if wait:
            self.wait_until_ready(spec.name)

    def wait_until_ready(self, name: str) -> None:
        """Wait for a service that was started without waiting."""
        one = next(one for one in self.running if one.spec.name == name)
        until = self.clock.monotonic() + one.spec.ready_within_seconds
        while not one.spec.is_ready():
            if one.process.poll() is not None:
                raise ServiceFailed(
                    f"{name} ended at once with code {one.process.returncode}; {self._last_words(one.spec)}"
                )
            if self.clock.monotonic() > until:
                raise ServiceFailed(
                    f"{name} was not ready within {one.spec.ready_within_seconds:g} s; {self._last_words(one.spec)}"
                )
            self.clock.sleep(POLL_SECONDS)

    def run_once(self, spec: ServiceSpec) -> None:
        """Start a process that ends by itself; whether it is still at it, only stopping cares."""
        self.once.append(Running(spec, self._spawn(spec)))

    def restart_what_died(self) -> None:
        """Start again whatever has ended. Raises ServiceFailed for a service that keeps ending."""
        for one in self.running:
            code = one.process.poll()
            if code is None:
                continue
            if one.restarts >= RESTARTS_AT_MOST:
                raise ServiceFailed(f"{one.spec.name} ended {one.restarts + 1} times; {self._last_words(one.spec)}")
            self.say(f"{one.spec.name} ended with code {code}: starting it again")
            _kill(_orphans_of(one.process.pid))
            one.restarts += 1
            one.process = self._spawn(one.spec)
            self._note()
            if one.spec.when_back is not None:
                self.wait_until_ready(one.spec.name)
                one.spec.when_back()

    def stop(self) -> None:
        """End every service with all its descendants: asked first, then made to."""
        for one in (*self.once, *reversed(self.running)):
            if one.process.poll() is None:
                with suppress(psutil.NoSuchProcess):
                    _end(psutil.Process(one.process.pid))
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(timeout=1)
            else:
                _kill(_orphans_of(one.process.pid))
        self.running.clear()
        self.once.clear()
        (self.state_folder / STATE_FILE).unlink(missing_ok=True)

    def stop_leftovers(self) -> None:
        """End what an earlier supervisor noted and could not stop, if those processes still are the same ones."""
        state = self.state_folder / STATE_FILE
        try:
            noted = json.loads(state.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return
        for name, pid, created in noted:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == created:
                    self.say(f"stopping {name} (process {pid}), left over from an earlier start")
                    _end(process)
        state.unlink(missing_ok=True)

    def log_file(self, name: str) -> Path:
        """Where a service's output goes."""
        return self.state_folder / "logs" / f"{name.lower().replace(' ', '-')}.log"

    def _spawn(self, spec: ServiceSpec) -> "subprocess.Popen[bytes]":
        log = self.log_file(spec.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # A session of its own: Ctrl-C at the terminal reaches us alone, and we stop the services in order.
            return subprocess.Popen(
                list(spec.command),
                cwd=spec.folder,
                env={**os.environ, **spec.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _note(self) -> None:
        noted = []
        for one in self.running:
            with suppress(psutil.NoSuchProcess):
                noted.append((one.spec.name, one.process.pid, psutil.Process(one.process.pid).create_time()))
        self.state_folder.mkdir(parents=True, exist_ok=True)
        (self.state_folder / STATE_FILE).write_text(json.dumps(noted))

    def _last_words(self, spec: ServiceSpec) -> str:
        log = self.log_file(spec.name)
        lines = log.read_text(errors="replace").splitlines()[-LAST_WORDS_LINES:] if log.exists() else []
        return f"the end of {log}:\n" + "\n".join(lines)


def listens(host: str, port: int) -> bool:
    """Whether anything accepts connections there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
    except OSError:
        return False
    return True


def _end(process: psutil.Process) -> None:
    """Ask a service to end, wait, and make it and all that it started."""
    family = [process]
    with suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
    family += [one for one in _session_of(process.pid) if one not in family]
    with suppress(psutil.NoSuchProcess):
        process.terminate()
    _, alive = psutil.wait_procs([process], timeout=STOP_WITHIN_SECONDS)
    _kill([*alive, *family[1:]])


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, timeout=STOP_WITHIN_SECONDS)


def _orphans_of(pid: int) -> list[psutil.Process]:
    """What is left in the session of a service that has ended, such as a run of a killed code server.

    While anything is left, the kernel gives the session's number to no new process: where a process has it, nothing is.
    """
    return [] if psutil.pid_exists(pid) else _session_of(pid)


def _session_of(pid: int) -> list[psutil.Process]:
    """The processes of the session that a service leads, whoever their parent is by now."""
    found = []
    for one in psutil.process_iter():
        with suppress(OSError):
            if os.getsid(one.pid) == pid:
                found.append(one)
    return found
