"""Processes by what outlives a change of the clock, so that a process can tell later whether another one still runs."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # psutil is imported only where somebody asks
    import psutil

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
"""The files of Linux with a name of this start of the machine, and the set of process ids that this process belongs
to."""

SAME_START_SECONDS = 0.05
"""Two readings of a process' start agree to a hundredth of a second. A process id is not reused that soon."""


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process: the host's name, `ids` for where its number is valid (one start of one machine, and there one
    container), its number, and the seconds from the machine's start to its own. `since` is its start by the clock of
    then, for people."""

    host: str
    ids: str
    process: int
    started: float
    since: datetime = field(compare=False)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since:%Y-%m-%dT%H:%M:%SZ}"

    def is_near(self) -> bool:
        """Return true if this process can look at it. Where ids have no name, the host's name stands for them."""
        ids = _ids()
        return self.ids == ids and (ids != "" or self.host == socket.gethostname())

    def runs(self) -> bool:
        """Return true if it is alive, as far as this process can see it."""
        return self.running() is not None

    def has_ended(self) -> bool:
        """Return true if it is near and not alive."""
        return self.is_near() and not self.runs()

    def running(self) -> "psutil.Process | None":
        """The process, if this process can see it alive; a zombie is not. A host may have got another name since."""
        import psutil

        with suppress(psutil.NoSuchProcess, OverflowError, ValueError):
            there = psutil.Process(self.process)
            is_same = self.ids == _ids() and abs(_started(self.process) - self.started) < SAME_START_SECONDS
            if is_same and there.status() != psutil.STATUS_ZOMBIE:
                return there
        return None


def own_process() -> ProcessName:
    """The calling process."""
    return process_of(os.getpid())


def process_of(number: int) -> ProcessName:
    """The process of this machine that has the number now. Raises psutil.NoSuchProcess."""
    import psutil

    since = datetime.fromtimestamp(int(psutil.Process(number).create_time()), UTC)
    return ProcessName(socket.gethostname(), _ids(), number, round(_started(number), 2), since)


def _started(number: int) -> float:
    """The start of a process, in seconds from the machine's start: setting the clock moves both."""
    import psutil

    booted = psutil.boot_time()  # first: some versions of psutil keep it for what follows
    return float(psutil.Process(number).create_time() - booted)


@cache
def _ids() -> str:
    with suppress(OSError):
        return f"{BOOT.read_text().strip()}/{NAMESPACE.stat().st_ino}"
    return ""
