"""What a pipeline's process says of itself outside of the lake, which may be full: one small file beside
`services.json`, allocated beforehand and written over in place."""

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.store.notes import JsonKind
from tidemark.pipeline.lake.tables.failures import FailedTick
from tidemark.pipeline.settings import ReadFrom, Settings

SUFFIX = ".running.json"
SLOT, SLOTS = 16 << 10, 2
"""Bytes of a slot, and how many there are. They are written in turns, so that a torn one leaves the other."""

LEAST_REASON = 40
"""Characters to which reasons are cut where more sensors fail than a slot has room for."""

CLOCK_SET = timedelta(seconds=5)
"""By how much the moment at which a process began may change, since it is reckoned from a clock that is set."""

BEFORE, BETWEEN = b'{"sum":"', b'","said":'
"""What stands before the checksum of a slot, and between that and what it says."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that ticks sensors: where it runs and since when, which lake it writes, which settings it has read,
    when each sensor's last good tick ended, and the sensors whose ticks fail."""

    lake: str
    host: str
    process: int
    began: datetime
    settings: ReadFrom | None
    good: Mapping[str, datetime] = field(default_factory=dict)
    failing: Sequence[FailedTick] = ()
    generation: int = 0

    @classmethod
    def this_process(cls, settings: Settings) -> "Running":
        """This process, before its first tick."""
        began = _began(os.getpid()) or EPOCH
        return cls(settings.lake.uri, socket.gethostname(), os.getpid(), began, settings.read_from)

    def joined(self, other: "Running") -> "Running":
        """This process, with what another one has said of the same lake's sensors since, or alone."""
        if other.lake != self.lake:
            return self
        mine, theirs = self._heard, other._heard
        newer = {sensor for sensor, at in theirs.items() if sensor not in mine or at > mine[sensor]}
        failing = [one for one in self.failing if one.sensor not in newer]
        return replace(
            self,
            good={**other.good, **{sensor: at for sensor, at in self.good.items() if sensor not in newer}},
            failing=[*failing, *(one for one in other.failing if one.sensor in newer)],
        )

    @property
    def _heard(self) -> dict[str, datetime]:
        """When each sensor's last tick ended."""
        heard = dict(self.good)
        for one in self.failing:
            heard[one.sensor] = max(one.last, heard.get(one.sensor, one.last))
        return heard

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, or ran there."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process is on this machine and has not ended."""
        began = _began(self.process) if self.is_here else None
        return began is not None and abs(began - self.began) < CLOCK_SET

    @property
    def stale_settings(self) -> str | None:
        """The sentence that its settings file is not any more what it has read; None if it is, or it has ended."""
        if self.settings is None or not self.is_alive:
            return None
        file, when = Path(self.settings.path), "is gone"
        with suppress(OSError):
            if ReadFrom.of(file, file.read_bytes()) == self.settings:
                return None
            when = f"changed at {datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return (
            f"the settings file {file} {when}, and process {self.process} goes on with what it read when it began, at "
            f"{self.began:%Y-%m-%dT%H:%M:%SZ}: restart `tidemark up`, or the code server, to use the file as it is"
        )


KIND: JsonKind[Running] = JsonKind("", holds=Running, suffix=SUFFIX)


class RunningFile:
    """One file, for any number of writers: a slot in which two have written at once fails its checksum, and the other
    one stands until the next tick."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Running | None:
        """The newest that was said; None if there is no file, nothing whole in it, or a later version's alone."""
        try:
            with self.path.open("rb") as file:
                written = file.read(SLOT * SLOTS)
        except OSError:
            return None
        slots = (written[start : start + SLOT] for start in range(0, SLOT * SLOTS, SLOT))
        return max(filter(None, map(self._decoded, slots)), key=lambda one: one.generation, default=None)

    def write(self, said: Running, there: Running | None, *, sync: bool) -> None:
        """Say it in the slot whose turn it is, after what was read there. `sync` has it outlive the machine. Raises
        OSError."""
        said = replace(said, generation=0 if there is None else there.generation + 1)
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(number).st_size != SLOT * SLOTS:  # real bytes: a hole would be allocated when it is too late
                _put(number, b" " * (SLOT * SLOTS), 0)
                sync = True
            _put(number, _encoded(said), said.generation % SLOTS * SLOT)
            if sync:
                os.fsync(number)
        finally:
            os.close(number)

    def _decoded(self, slot: bytes) -> Running | None:
        line = slot.rstrip()
        start = len(BEFORE) + 16 + len(BETWEEN)
        said = line[start:-1]
        if line[:start] != BEFORE + _sum(said) + BETWEEN:
            return None
        with suppress(LakeError):  # of a later version, or not ours
            return KIND.decode(said, str(self.path))
        return None


def file_of(settings: Settings) -> RunningFile | None:
    """The file of a pipeline; None where there is no folder for it, as in a project of somebody else's."""
    folder = Path(settings.dagster.storage).parent
    if not folder.is_absolute() or not folder.is_dir():
        return None
    return RunningFile(folder / f"{settings.pipeline_name}{SUFFIX}")


def read_running(settings: Settings) -> Running | None:
    """What the process of these settings' pipeline said last on this machine; None without a word from it. A process
    that has read the same file counts as well: the file may name another lake by now."""
    folder = Path(settings.dagster.storage).parent
    mine, file = [], settings.read_from
    for path in folder.glob(f"*{SUFFIX}") if folder.is_absolute() else ():
        if (said := RunningFile(path).read()) is None:
            continue
        if said.lake == settings.lake.uri or (file and said.settings and said.settings.path == file.path):
            mine.append(said)
    return max(mine, key=lambda said: (said.is_alive, said.began), default=None)


def _encoded(said: Running) -> bytes:
    """A slot. Where more fails than there is room for, reasons are cut; then sensors are left out, those that have
    failed longest last. Raises OSError if nothing fits."""
    for smaller in _ever_smaller(said):
        text = KIND.encode(smaller).strip()
        line = BEFORE + _sum(text) + BETWEEN + text + b"}"
        if len(line) < SLOT:
            return line.ljust(SLOT - 1) + b"\n"
    raise OSError("what is to be said does not fit")


def _ever_smaller(said: Running) -> Iterator[Running]:
    yield said
    failing = sorted(said.failing, key=lambda one: one.since)
    failing = [replace(one, reason=one.reason[:LEAST_REASON]) for one in failing]
    while failing:
        yield replace(said, failing=failing)
        failing = failing[: len(failing) // 2]
    yield replace(said, failing=(), good={})


def _put(number: int, content: bytes, at: int) -> None:
    written = os.pwrite(number, content, at)
    if written != len(content):
        raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes could be written")


def _sum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()


def _began(process: int) -> datetime | None:
    """When a process of this machine began; None where there is none of this number."""
    import psutil  # only where somebody asks

    with suppress(psutil.Error):
        return datetime.fromtimestamp(psutil.Process(process).create_time(), UTC)
    return None
