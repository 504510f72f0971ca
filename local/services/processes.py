"""Starts processes, keeps them alive, and stops them by process id."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tidemark.local.services.own_files import log_file, usable
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import AlreadyRunning, DamagedNote, ServiceFailed
from tidemark.pipeline.hosts import listens
from tidemark.pipeline.lake.store.disk import locked, why_unwritable
from tidemark.pipeline.lake.store.notes import JsonKind
from tidemark.pipeline.lake.store.slots import SlotFile
from tidemark.pipeline.machine import ProcessName, own_process, process_of
from tidemark.pipeline.settings_sections import LISTEN, MetricsSettings

STOP_WITHIN_SECONDS = 10.0
POLL_SECONDS = 0.2
RESTARTS_AT_MOST = 20
"""The most restarts of a service that keeps ending, before the supervisor gives up."""

STATE_FILE = "services.json"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process to run: its command, and the test that it serves.

    `when_back` is called once it serves again after a restart, to recreate what it held in memory. One that `ends` by
    itself is not restarted, only stopped.
    """

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    is_ready: Callable[[], bool] = lambda: True
    ready_within_seconds: float = 60
    when_back: Callable[[], None] | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class StartedService:
    """A started service, and where in its log this start begins."""

    spec: ServiceSpec
    process: psutil.Popen
    log_from: int
    restarts: int = 0


class StopAsked(Exception):
    """Somebody has asked to stop before everything was started."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The processes that a supervisor has noted in its folder: its own, and its services in the order of their
    start."""

    owner: ProcessName | None = None
    services: Mapping[str, ProcessName] = field(default_factory=dict)

    def living_owner(self) -> ProcessName | None:
        """The supervisor, if it is another process than this one and lives."""
        owner = self.owner
        return owner if owner is not None and owner != own_process() and owner.runs() else None

    def alive(self) -> dict[str, ProcessName]:
        """The services that run."""
        return {name: process for name, process in self.services.items() if process.runs()}


NOTED: JsonKind[Noted] = JsonKind("", holds=Noted, part_of="state")


def noted_file(folder: Path) -> SlotFile[Noted]:
    """The note of a folder."""
    return SlotFile(folder / STATE_FILE, NOTED, mode=0o644)


def noted_in(folder: Path) -> Noted:
    """The processes that are noted in a folder; none if there is no note, or it is damaged. Raises NewerFormat,
    ServiceFailed."""
    with suppress(DamagedNote), usable(folder):
        return noted_file(folder).read() or Noted()
    return Noted()


@dataclass
class Supervisor:
    """Starts services in the order given, restarts those that die, and stops all in the reverse order.

    It notes running services in `state_folder`, so that the next supervisor can stop what a killed one left behind.
    `say` is told what happens, a sentence at a time. Waiting ends with StopAsked once `is_asked_to_stop`.
    """

    state_folder: Path
    clock: Clock
    say: Callable[[str], None]
    running: list[StartedService] = field(default_factory=list)
    is_asked_to_stop: Callable[[], bool] = lambda: False
    _has_warned: bool = field(default=False, init=False)

    def start(self, spec: ServiceSpec, *, wait: bool = True) -> None:
        """Start a service. Raises ServiceFailed with the end of its log if it ends, or is not ready in time."""
        self.running.append(self._started(spec))
        with usable(self.state_folder):
            self._note()
        if wait:
            self.wait_until_ready(spec.name)

    def wait_until_ready(self, name: str) -> None:
        """Wait for a started service. Raises ServiceFailed as `start` does, and StopAsked."""
        one = next(one for one in self.running if one.spec.name == name)
        within = one.spec.ready_within_seconds
        until = self.clock.monotonic() + within
        while not one.spec.is_ready():
            if self.is_asked_to_stop():
                raise StopAsked
            if one.process.poll() is not None:
                raise ServiceFailed(f"{name} ended at once with code {one.process.returncode}; {self._log_end(one)}")
            if self.clock.monotonic() > until:
                raise ServiceFailed(f"{name} was not ready within {within:g} s; {self._log_end(one)}")
            self.clock.sleep(POLL_SECONDS)

    def restart_what_died(self) -> None:
        """Restart services that have ended. Raises ServiceFailed for one that keeps ending."""
        for index, one in enumerate(self.running):
            code = one.process.poll()
            if code is None or one.spec.ends:
                continue
            if one.restarts >= RESTARTS_AT_MOST:
                raise ServiceFailed(f"{one.spec.name} ended {one.restarts + 1} times; {self._log_end(one)}")
            lines = why_ended(self.log_file(one.spec.name), one.log_from) if code else []  # 0: it was asked to end
            self.say("\n  ".join([f"{one.spec.name} ended with code {code}: starting it again", *lines]))
            _kill(_orphans_of(one.process.pid))
            is_counted = why_unwritable(self.state_folder) is None  # on a full disk Dagster ends until there is room
            self.running[index] = replace(self._started(one.spec), restarts=one.restarts + is_counted)
            with self._going_on():
                self._note()
            if one.spec.when_back is not None:
                self.wait_until_ready(one.spec.name)
                one.spec.when_back()

    def stop(self) -> None:
        """End every service with all its descendants: SIGTERM first, then SIGKILL."""
        for one in reversed(self.running):
            if one.process.poll() is None:
                _end(one.process)
            else:
                _kill(_orphans_of(one.process.pid))
        self.running.clear()
        (self.state_folder / STATE_FILE).unlink(missing_ok=True)

    def take_over(self) -> None:
        """Own the folder from now on, and end the services that its earlier owner noted and did not stop. Raises
        AlreadyRunning, and ends nothing, if that owner lives; NewerFormat."""
        with usable(self.state_folder):
            self.state_folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.state_folder):
            noted = noted_in(self.state_folder)
            if (owner := noted.living_owner()) is not None:
                raise AlreadyRunning(
                    f"already running as {owner}, in {self.state_folder}. Stop that one first: Ctrl-C in its terminal, "
                    f"`tidemark up --stop`, or `kill {owner.process}`"
                )
            for name, noted_process in noted.services.items():
                if (process := noted_process.running()) is not None:
                    self.say(f"stopping {name} (process {process.pid}), left over from an earlier start")
                    _end(process)
            with usable(self.state_folder):
                self._note()

    def log_file(self, name: str) -> Path:
        """The file of a service's output."""
        return log_file(self.state_folder, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Let an error of the folder pass, and say the first one: services that run matter more."""
        try:
            yield
        except OSError as error:
            if not self._has_warned:
                self.say(
                    f"{error.filename or self.state_folder}: {error.strerror}. Services run on. Make room there, or "
                    "make it writable: until then logs lack lines, and a later start may not know all services"
                )
            self._has_warned = True

    def _started(self, spec: ServiceSpec) -> StartedService:
        log, output = self.log_file(spec.name), subprocess.DEVNULL
        begins = log.stat().st_size if log.exists() else 0
        with ExitStack() as opened:
            with self._going_on():
                log.parent.mkdir(parents=True, exist_ok=True)
                output = opened.enter_context(log.open("ab")).fileno()
            # A session of its own: Ctrl-C at the terminal reaches only us, and we stop the services in order.
            process = psutil.Popen(
                list(spec.command),
                cwd=spec.folder,
                env={**os.environ, **spec.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return StartedService(spec, process, begins)

    def _note(self) -> None:
        """Note what runs. Raises OSError."""
        services = {}
        for one in self.running:
            with suppress(psutil.NoSuchProcess):
                if one.process.is_running():
                    services[one.spec.name] = process_of(one.process.pid)
        noted_file(self.state_folder).write(Noted(own_process(), services))

    def _log_end(self, one: StartedService) -> str:
        return log_end(self.log_file(one.spec.name), one.log_from)


def page_sentence(chosen: MetricsSettings) -> str:
    """State where the page is, or that its port is taken. Ask before it is served."""
    where = chosen.listen or LISTEN
    if listens(*chosen.address):
        return f"no status page: something listens at {where} already; choose another address with metrics.listen"
    return f"the page, from the first tick on: http://{where}/"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises AlreadyRunning if another process holds it."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"another `tidemark up` begins or stops in {folder}; look at `tidemark up --status`"
            ) from error
        yield


def _end(process: psutil.Process) -> None:
    """Ask a process to end, wait, then kill it and all that it started."""
    started = _session_of(process.pid)
    with suppress(psutil.NoSuchProcess):
        started += process.children(recursive=True)
        process.terminate()
    psutil.wait_procs([process], timeout=STOP_WITHIN_SECONDS)
    _kill([process, *started])


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, timeout=STOP_WITHIN_SECONDS)


def _orphans_of(pid: int) -> list[psutil.Process]:
    """The processes left in the session of a service that has ended, such as a run of a killed code server.

    The kernel reuses a session's number only once the session is empty. So if a process has that id, nothing is left.
    """
    return [] if psutil.pid_exists(pid) else _session_of(pid)


def _session_of(pid: int) -> list[psutil.Process]:
    """The processes of the session that a service leads, whatever their parent is by now."""
    found = []
    for one in psutil.process_iter():
        with suppress(OSError):
            if os.getsid(one.pid) == pid:
                found.append(one)
    return found


LINES_AT_END = 15
REASONS_AT_MOST = 6
READ_AT_END_BYTES = 1 << 20
"""The end of a log that is looked at: a server that ran for weeks has a long one."""

REASON = re.compile(
    r"Exception in thread \"|OutOfMemoryError|Address already in use|BindException|insufficient memory|"
    r"Could not (?:create|reserve|find)|All masters are unresponsive|failed to map|SIGSEGV|SIGBUS|"
    r"^(?:Caused by:|Error:|Error occurred|java\.|org\.apache\.spark\.\S*(?:Exception|Error)\b)"
)
"""Lines by which a JVM or Spark says why it ends. A stack trace's lines begin with a tab and `at`.
Python writes `Exception in thread Thread-1:`, without quotes and without a reason: that is none."""

LONGEST = 400
"""Characters of a line that are shown."""


def log_end(log: Path, since: int = 0) -> str:
    """Quote what a log says of the end, from this byte on: the lines that say why, unless the last ones hold them
    anyway, and the last lines."""
    lines = _lines(log, since)
    last = lines[-LINES_AT_END:]
    shown = [line for line in reasons(lines) if line not in last]
    why = f"{log} says why:\n" + "\n".join(shown) + "\n" if shown else ""
    return f"{why}the end of {log}:\n" + "\n".join(last)


def why_ended(log: Path, since: int = 0) -> list[str]:
    """The lines of a log, from this byte on, that say why its service ended; none if there is no log."""
    return reasons(_lines(log, since))


def reasons(lines: list[str]) -> list[str]:
    """The newest lines that say why, each once, in their order."""
    found = [line.strip()[:LONGEST] for line in lines if REASON.search(line) and not line.startswith("\t")]
    return list(dict.fromkeys(found))[-REASONS_AT_MOST:]


def _lines(log: Path, since: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(min(since, size), size - READ_AT_END_BYTES))
        return file.read().decode(errors="replace").splitlines()
