"""Starts processes, restarts them when they end, and stops them by process id."""

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
from tidemark.pipeline.lake.store.disk import locked, why_unwritable
from tidemark.pipeline.lake.store.notes import JsonKind, SlotFile
from tidemark.pipeline.machine import ProcessName, listens, own_process, process_of
from tidemark.pipeline.settings_sections import LISTEN, MetricsSettings

STOP_WITHIN_SECONDS = 10.0
POLL_SECONDS = 0.2
RESTARTS_AT_MOST = 20
"""Maximum number of counted restarts of a service. If the service ends once more, `tidemark up` fails."""

LOG_BYTES = 64 << 20
"""Maximum size of a service's log. The log of Dagster's daemon grows by about 15 MB a day."""

STATE_FILE = "services.json"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A process to run: its command, and its readiness test.

    `when_back` is called when the process is ready after a restart, to recreate state that was only in memory. If
    `ends` is true, the process finishes by itself and is not restarted.
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
    """A started service. `log_from` is the offset in its log where the output of this start begins."""

    spec: ServiceSpec
    process: psutil.Popen
    log_from: int
    restarts: int = 0


class StopAsked(Exception):
    """A stop was requested before all services were ready."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The processes that a supervisor has recorded in its folder: itself (`owner`), and its services in start order.
    `folder` identifies the folder, even after a rename. A copy of the folder therefore does not claim the processes."""

    owner: ProcessName | None = None
    services: Mapping[str, ProcessName] = field(default_factory=dict)
    folder: str = ""

    def living_owner(self) -> ProcessName | None:
        """Return the recorded supervisor if it is alive and not this process, otherwise None."""
        owner = self.owner
        return owner if owner is not None and owner != own_process() and owner.runs() else None

    def alive(self) -> dict[str, ProcessName]:
        return {name: process for name, process in self.services.items() if process.runs()}


NOTED: JsonKind[Noted] = JsonKind("", holds=Noted, part_of="state")


def noted_file(folder: Path) -> SlotFile[Noted]:
    """Return the file that records the processes of a folder."""
    return SlotFile(folder / STATE_FILE, NOTED, mode=0o644)


def noted_in(folder: Path) -> Noted:
    """Read the recorded processes of a folder; none if the file is absent, damaged or from another folder. Raises
    NewerFormat, and ServiceFailed if the file cannot be read."""
    with suppress(DamagedNote), usable(folder):
        noted = noted_file(folder).read()
        if noted is not None and noted.folder in ("", _identity(folder)):
            return noted
    return Noted()


def _identity(folder: Path) -> str:
    there = folder.stat()
    return f"{there.st_dev}/{there.st_ino}"


@dataclass
class Supervisor:
    """Starts services in order, restarts those that end, and stops all in reverse order.

    Running services are recorded in `state_folder`. If a supervisor is killed, the next one can therefore stop its
    services. `say` receives progress messages. Once `is_asked_to_stop` returns true, a wait for a service raises
    StopAsked.
    """

    state_folder: Path
    clock: Clock
    say: Callable[[str], None]
    running: list[StartedService] = field(default_factory=list)
    is_asked_to_stop: Callable[[], bool] = lambda: False
    _has_warned: bool = field(default=False, init=False)

    def start(self, spec: ServiceSpec, *, wait: bool = True) -> None:
        """Start a service and, with `wait`, wait until it is ready. Raises ServiceFailed, with the end of the service's
        log, if the awaited service ends or is not ready in time."""
        self.running.append(self._started(spec))
        with usable(self.state_folder):
            self._note()
        if wait:
            self.wait_until_ready(spec.name)

    def wait_until_ready(self, name: str) -> None:
        """Wait until a started service is ready. Raises the errors of `start`, and StopAsked if a stop is requested."""
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

    def holds(self, name: str, port: int) -> bool:
        """Return True if a started service itself listens at this port, or if that cannot be determined. The test is
        needed because Google's emulator keeps running without a port if another process took the port first."""
        try:
            sockets = next(one.process for one in self.running if one.spec.name == name).net_connections()
        except psutil.Error as error:
            return isinstance(error, psutil.AccessDenied)  # its sockets cannot be seen, so the port may be its own
        return any(one.laddr.port == port for one in sockets if one.status == psutil.CONN_LISTEN)

    def restart_what_died(self) -> None:
        """Restart services that have ended. A restart counts only if the state folder is writable. Raises ServiceFailed
        if a service ends after RESTARTS_AT_MOST counted restarts, and the errors of `wait_until_ready`."""
        for index, one in enumerate(self.running):
            code = one.process.poll()
            if code is None or one.spec.ends:
                continue
            if one.restarts >= RESTARTS_AT_MOST:
                raise ServiceFailed(f"{one.spec.name} ended {one.restarts + 1} times; {self._log_end(one)}")
            lines = why_ended(self.log_file(one.spec.name), one.log_from) if code else []  # 0: it was asked to end
            self.say("\n  ".join([f"{one.spec.name} ended with code {code}: starting it again", *lines]))
            _kill(_orphans_of(one.process.pid))
            is_counted = why_unwritable(self.state_folder) is None  # on a full disk, Dagster ends again and again
            self.running[index] = replace(self._started(one.spec), restarts=one.restarts + is_counted)
            with self._going_on():
                self._note()
            if one.spec.when_back is not None:
                self.wait_until_ready(one.spec.name)
                one.spec.when_back()

    def shorten_logs(self) -> None:
        """Shorten each service's log that has grown beyond LOG_BYTES (see `shortened`)."""
        for index, one in enumerate(self.running):
            with suppress(OSError):
                dropped = shortened(self.log_file(one.spec.name))
                self.running[index] = replace(one, log_from=max(0, one.log_from - dropped))

    def stop(self) -> None:
        """End every service, in reverse order: SIGTERM for the service, then SIGKILL for it and its descendants."""
        for one in reversed(self.running):
            if one.process.poll() is None:
                _end(one.process)
            else:
                _kill(_orphans_of(one.process.pid))
        self.running.clear()
        (self.state_folder / STATE_FILE).unlink(missing_ok=True)

    def take_over(self) -> None:
        """Become the supervisor of the folder. End the services that an earlier supervisor left running, in reverse
        order, and the processes left by services that died. Raises NewerFormat, and AlreadyRunning if the earlier
        supervisor is alive."""
        with usable(self.state_folder):
            self.state_folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.state_folder):
            noted = noted_in(self.state_folder)
            if (owner := noted.living_owner()) is not None:
                raise AlreadyRunning(
                    f"already running as {owner}, in {self.state_folder}. Stop it first: Ctrl-C in its terminal, "
                    f"`tidemark up --stop`, or `kill {owner.process}`"
                )
            for name, noted_process in reversed(list(noted.services.items())):
                if (process := noted_process.running()) is not None:
                    self.say(f"stopping {name} (process {process.pid}), left over from an earlier start")
                    _end(process)
                elif noted_process.is_near():
                    _kill(_orphans_of(noted_process.process))
            with usable(self.state_folder):
                self._note()

    def log_file(self, name: str) -> Path:
        return log_file(self.state_folder, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Within this block, ignore an OSError, so that services keep running. Only the first error is reported."""
        try:
            yield
        except OSError as error:
            if not self._has_warned:
                self.say(
                    f"{error.filename or self.state_folder}: {error.strerror}. Services keep running. Free some space "
                    "or make the folder writable. Until then, logs lack lines, and the next start may miss services"
                )
            self._has_warned = True

    def _started(self, spec: ServiceSpec) -> StartedService:
        log, output = self.log_file(spec.name), subprocess.DEVNULL
        begins = log.stat().st_size if log.exists() else 0
        with ExitStack() as opened:
            with self._going_on():
                log.parent.mkdir(parents=True, exist_ok=True)
                output = opened.enter_context(log.open("ab")).fileno()
            # In a new session, so that Ctrl-C reaches only this process, which stops the services in order.
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
        services = {}
        for one in self.running:
            with suppress(psutil.NoSuchProcess):
                if one.process.is_running():
                    services[one.spec.name] = process_of(one.process.pid)
        noted_file(self.state_folder).write(Noted(own_process(), services, _identity(self.state_folder)))

    def _log_end(self, one: StartedService) -> str:
        return log_end(self.log_file(one.spec.name), one.log_from)


def page_sentence(chosen: MetricsSettings) -> str:
    """Return a sentence with the status page's address or, if another server has the port, a sentence that says so.
    Call this before the page is served, because afterwards the page itself has the port."""
    where = chosen.listen or LISTEN
    if listens(*chosen.address):
        return f"no status page: something listens at {where} already; choose another address with metrics.listen"
    return f"the status page, from the first tick on: http://{where}/"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder during the block. Raises AlreadyRunning if another process has locked it."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"another `tidemark up` is starting or stopping in {folder}; see `tidemark up --status`"
            ) from error
        yield


def _end(process: psutil.Process) -> None:
    """Terminate a process, wait, and then kill the process and all its descendants."""
    started = _session_of(process.pid)
    with suppress(psutil.NoSuchProcess):
        started += process.children(recursive=True)
        process.terminate()
    psutil.wait_procs([process], timeout=STOP_WITHIN_SECONDS)
    _kill([process, *started])


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            one.kill()
    psutil.wait_procs(processes, timeout=STOP_WITHIN_SECONDS)


def _orphans_of(pid: int) -> list[psutil.Process]:
    """Return the processes left in the session of an ended service, such as a run of a killed code server.

    `pid` was the service's process id, and is the session's id. The kernel gives the id to a new process only when the
    session is empty. So if a process has this id now, nothing is left.
    """
    return [] if psutil.pid_exists(pid) else _session_of(pid)


def _session_of(pid: int) -> list[psutil.Process]:
    """Return the processes in the session with this id, whatever their parents."""
    found = []
    for one in psutil.process_iter():
        with suppress(OSError):
            if os.getsid(one.pid) == pid:
                found.append(one)
    return found


LINES_AT_END = 15
REASONS_AT_MOST = 6
READ_AT_END_BYTES = 1 << 20
"""Maximum number of bytes read from a log's end. The log of a long-running server is large."""

REASON = re.compile(
    r"Exception in thread \"|OutOfMemoryError|Address already in use|BindException|insufficient memory|"
    r"Could not (?:create|reserve|find)|All masters are unresponsive|failed to map|SIGSEGV|SIGBUS|"
    r"^(?:Caused by:|Error:|Error occurred|java\.|org\.apache\.spark\.\S*(?:Exception|Error)\b)"
)
"""Matches log lines in which a JVM or Spark says why it ends. It does not match lines of a stack trace, or Python's
`Exception in thread Thread-1:`, which names no reason."""

LONGEST = 400
"""Maximum length of a quoted line, in characters."""


def log_end(log: Path, since: int = 0) -> str:
    """Quote the last lines of a log, from the offset `since` on. If lines before the quoted ones say why the service
    ended, quote those first."""
    lines = _lines(log, since)
    last = lines[-LINES_AT_END:]
    shown = [line for line in reasons(lines) if line not in last]
    why = f"{log} says why:\n" + "\n".join(shown) + "\n" if shown else ""
    return f"{why}the end of {log}:\n" + "\n".join(last)


def why_ended(log: Path, since: int = 0) -> list[str]:
    """Return the lines of a log, from the offset `since` on, that say why the service ended, if the log exists."""
    return reasons(_lines(log, since))


def reasons(lines: list[str]) -> list[str]:
    """Return the last REASONS_AT_MOST of the distinct lines that match REASON, in order of first occurrence."""
    found = [line.strip()[:LONGEST] for line in lines if REASON.search(line) and not line.startswith("\t")]
    return list(dict.fromkeys(found))[-REASONS_AT_MOST:]


def shortened(log: Path) -> int:
    """If a log exceeds LOG_BYTES, keep only the lines in its last LOG_BYTES / 2. Return the number of bytes dropped.

    The service keeps the log open for appending, so the file is rewritten in place. Lines that the service writes
    meanwhile may be dropped or precede earlier ones.
    """
    with log.open("a+b") as file:
        if (size := file.seek(0, 2)) <= LOG_BYTES:
            return 0
        file.seek(size - LOG_BYTES // 2)
        file.readline()
        kept = file.read()
        file.truncate(0)
        file.write(kept)
    return size - len(kept)


def _lines(log: Path, since: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(min(since, size), size - READ_AT_END_BYTES))
        return file.read().decode(errors="replace").splitlines()
