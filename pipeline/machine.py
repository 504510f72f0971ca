"""Identifies processes on this machine, checks the host names in requests to tidemark's pages, and replaces files.

A process's identity survives clock changes, so another process can check later whether the process still runs.

A browser lets any page send requests to `127.0.0.1`, and a hostile name server can make any name resolve to that
address. So a request is accepted only if it names an allowed host.
"""

import ipaddress
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # psutil is imported only where it is used
    import psutil

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
"""Linux files that identify this boot of the machine and the PID namespace of this process."""

SAME_START_SECONDS = 0.05
"""Tolerance when comparing two readings of a process's start time. The readings agree to 0.01 s, and no PID is reused
within the tolerance."""


@dataclass(frozen=True, slots=True)
class ProcessName:
    """Identifies a process, even after the clock is set or its PID is reused.

    `host` is the host's name. `ids` is the scope of the PID: one boot of one machine, and one container. `process` is
    the PID. `started` is the process's start in seconds since the machine's boot. `since` is its start by the wall
    clock, for display."""

    host: str
    ids: str
    process: int
    started: float
    since: datetime = field(compare=False)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since:%Y-%m-%dT%H:%M:%SZ}"

    def is_near(self) -> bool:
        """Return True if the calling process can see this process: both are in one scope of PIDs or, if no scope is
        known, on one host."""
        ids = _ids()
        return self.ids == ids and (ids != "" or self.host == socket.gethostname())

    def runs(self) -> bool:
        """Return True if the process is alive and visible to the calling process."""
        return self.running() is not None

    def is_paused(self) -> bool:
        """Return True if a signal such as SIGSTOP has stopped the process, which then does nothing until SIGCONT."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            there = self.running()
            return there is not None and there.status() == psutil.STATUS_STOPPED
        return False

    def has_ended(self) -> bool:
        """Return True if the process has certainly ended: the calling process would see it if it were alive."""
        return self.is_near() and not self.runs()

    def running(self) -> "psutil.Process | None":
        """Return the process if it is alive and visible to the calling process. A zombie counts as ended. The host's
        name is ignored, since it may have changed."""
        import psutil

        with suppress(psutil.NoSuchProcess, OverflowError, ValueError):
            there = psutil.Process(self.process)
            is_same = self.ids == _ids() and abs(_started(self.process) - self.started) < SAME_START_SECONDS
            if is_same and there.status() != psutil.STATUS_ZOMBIE:
                return there
        return None


def own_process() -> ProcessName:
    """Return the identity of the calling process."""
    return process_of(os.getpid())


def process_of(number: int) -> ProcessName:
    """Return the identity of the process that has this PID now. Raises psutil.NoSuchProcess if there is none."""
    import psutil

    since = datetime.fromtimestamp(int(psutil.Process(number).create_time()), UTC)
    return ProcessName(socket.gethostname(), _ids(), number, round(_started(number), 2), since)


def _started(number: int) -> float:
    """Return the start time of a process in seconds since boot. Setting the clock does not change it."""
    import psutil

    booted = psutil.boot_time()  # read first, because some versions of psutil cache it
    return float(psutil.Process(number).create_time() - booted)


@cache
def _ids() -> str:
    with suppress(OSError):
        return f"{BOOT.read_text().strip()}/{NAMESPACE.stat().st_ino}"
    return ""


LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Host names that are always accepted, since no name server resolves them."""


def host_name(host: str) -> str:
    """Return the name of a `Host` header without its port, in lower case: `localhost` for `localhost:3000`."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


def is_ours(hosts: Sequence[str], allowed: Collection[str], *, any_address: bool = False) -> bool:
    """Return True if a request with these `Host` headers names this machine, by a loopback name or an allowed name.

    `any_address` also accepts any IP address, which no name server resolves, and a request without a `Host` header,
    which no browser sends.
    """
    if len(hosts) != 1:
        return any_address and not hosts
    name = host_name(hosts[0])
    return name in LOOPBACK or name in allowed or (any_address and _address(name) is not None)


def is_loopback(host: str) -> bool:
    """Return True if the host is `localhost` or a loopback address, which only this machine can reach."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]"))
    return None


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path, in a temporary folder beside `file`, at which the block writes the new file. At the end of the
    block, the new file replaces `file`. After an error, the new file is deleted. So readers see all of the old file or
    all of the new one. Creates the folder of `file` if it is missing. Raises OSError if the file cannot be replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as folder:
        made = Path(folder, file.name)
        yield made
        made.replace(file)


def listens(host: str, port: int) -> bool:
    """Return True if anything accepts a connection at this address within a second."""
    with suppress(OSError):
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
        return True
    return False
