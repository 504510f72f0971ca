"""Processes by what outlives a change of the clock, so that a process can tell later whether another one still runs."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
"""On Linux: a name of this start of the machine, and the set of process ids that this process belongs to."""

SAME_START_SECONDS = 0.05
"""Two readings of a process' start agree to a hundredth of a second. A process id is not reused that soon."""


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process: the host's name, `ids` for where its number is valid (one start of one machine, and there one
    container), its number, and the seconds from the machine's start to its own."""

    host: str
    ids: str
    process: int
    started: float

    def is_near(self) -> bool:
        """Whether this process can look at it."""
        return (self.host, self.ids) == _here()

    def runs(self) -> bool:
        """Whether it is alive, if it is near."""
        return running(self.process, self.started) is not None


def own_process() -> ProcessName:
    """The calling process."""
    return ProcessName(*_here(), os.getpid(), round(started(os.getpid()), 2))


def started(process: int) -> float:
    """When a process began, in seconds from the machine's start: setting the clock moves both. Raises
    psutil.NoSuchProcess."""
    booted = psutil.boot_time()  # first: some versions of psutil keep it for what follows
    return float(psutil.Process(process).create_time() - booted)


def running(process: int, since: float) -> psutil.Process | None:
    """The process of this number, if it began then and is alive. A zombie is not."""
    with suppress(psutil.NoSuchProcess, OverflowError, ValueError):
        there = psutil.Process(process)
        if abs(started(process) - since) < SAME_START_SECONDS and there.status() != psutil.STATUS_ZOMBIE:
            return there
    return None


@cache
def _here() -> tuple[str, str]:
    ids = ""
    with suppress(OSError):
        ids = f"{BOOT.read_text().strip()}/{NAMESPACE.stat().st_ino}"
    return socket.gethostname(), ids
