"""The notes of a pipeline's process about its ticks: in memory, in a file next to `services.json`, and in the lake."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from tidemark.pipeline.clock import EPOCH, Clock
from tidemark.pipeline.errors import LakeError, LakeOwned, NewerFormat
from tidemark.pipeline.lake.failures import FailedTick, FailedTicks, reason_of
from tidemark.pipeline.lake.store.notes import JsonKind, SlotFile
from tidemark.pipeline.machine import ProcessName, own_process
from tidemark.pipeline.settings import ReadFrom, Settings

LEAST_REASON = 40
"""The length to which reasons are cut if the file has no room for all failing sensors, in characters."""


@dataclass(frozen=True, slots=True)
class SensorTicks:
    """The ticks of a sensor: when the last successful tick ended, and the failure since, or why the sensor waits."""

    good: datetime | None = None
    failed: FailedTick | None = None

    @property
    def heard(self) -> datetime:
        """The end of the last tick."""
        return max(self.good or EPOCH, self.failed.last if self.failed else EPOCH)


@dataclass(frozen=True, slots=True)
class Running:
    """A process that ticks sensors: its lake, the settings file that it read, and the outcome of its ticks."""

    lake: str
    process: ProcessName
    settings: ReadFrom | None
    sensors: Mapping[str, SensorTicks] = field(default_factory=dict)

    @classmethod
    def this_process(cls, settings: Settings) -> "Running":
        """Return the note of this process before its first tick."""
        return cls(settings.lake.uri, own_process(), settings.read_from)

    @property
    def failing(self) -> list[FailedTick]:
        """The sensors whose ticks fail, or that wait."""
        return [ticks.failed for ticks in self.sensors.values() if ticks.failed]

    def joined(self, other: "Running | None") -> "Running":
        """Return these notes, with newer notes of another process about the sensors of the same lake."""
        if other is None or other.lake != self.lake:
            return self
        sensors = dict(other.sensors)
        for name, ticks in self.sensors.items():
            sensors[name] = max(ticks, sensors.get(name, ticks), key=lambda each: each.heard)
        return replace(self, sensors=sensors)

    @property
    def stale_settings(self) -> str | None:
        """A sentence if the settings file has changed since it was read; None otherwise, or if the process has
        ended."""
        if self.settings is None or not self.process.runs():
            return None
        file, when = Path(self.settings.path), "is gone"
        with suppress(OSError):
            if ReadFrom.of(file, file.read_bytes()) == self.settings:
                return None
            when = f"changed at {datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return (
            f"the settings file {file} {when}, and {self.process} still uses what it read at its start: restart "
            "`tidemark up`, or the code server, to use the current file"
        )


KIND: JsonKind[Running] = JsonKind("", holds=Running, suffix=".running.json")


def file_of(settings: Settings) -> SlotFile[Running] | None:
    """Return the file of a pipeline; None if its folder does not exist, as in another Dagster project."""
    folder = settings.dagster.state_folder
    if not folder.is_absolute() or not folder.is_dir():
        return None
    return _file(folder / KIND.name(settings.pipeline_name))


def read_running(settings: Settings) -> Running | None:
    """Read the newest note of this pipeline's process on this machine; None if there is none. A process that read the
    same settings file counts too: the file may name another lake by now."""
    folder = settings.dagster.state_folder
    mine, file = [], settings.read_from
    for path in folder.glob(KIND.name("*")) if folder.is_absolute() else ():
        said = read_word(_file(path))
        if said and (said.lake == settings.lake.uri or (file and said.settings and said.settings.path == file.path)):
            mine.append(said)
    return max(mine, key=lambda said: (said.process.runs(), said.process.since), default=None)


def read_word(file: SlotFile[Running]) -> Running | None:
    """Read a file; None if it is unreadable, damaged, or of a later version."""
    with suppress(LakeError, OSError):
        return file.read()
    return None


def ever_smaller(said: Running) -> Iterator[Running]:
    """Yield the note, then shorter versions for a file without room: first reasons are cut, then sensors are left out.
    The sensors that have failed longest are kept longest."""
    yield said
    failing = sorted(said.failing, key=lambda one: one.since)
    while failing:
        cut = {one.sensor: replace(one, reason=one.reason[:LEAST_REASON]) for one in failing}
        sensors = {name: replace(ticks, failed=cut.get(name)) for name, ticks in said.sensors.items()}
        yield replace(said, sensors=sensors)
        failing = failing[: len(failing) // 2]
    yield replace(said, sensors={})


def _file(path: Path) -> SlotFile[Running]:
    return SlotFile(path, KIND, mode=0o600)  # reasons may contain data


logger = logging.getLogger(__name__)


class TickNotes:
    """Records the ticks of one process' sensors. No call raises, and no decision depends on the notes. Thread-safe.

    The file is for this machine. It is written first, since a full lake accepts no note. The lake's notes are for other
    machines.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._file = file_of(settings)
        self._said = Running.this_process(settings)
        self._cleared = set[str]()
        self._warned = False

    def failed(self, sensor: str, error: BaseException, lake: FailedTicks | None) -> FailedTick:
        """Record a failed tick. Nothing is written to another pipeline's lake, or to a lake of a later version."""
        noted_in = None if isinstance(error, LakeOwned | NewerFormat) else lake
        return self._not_good(sensor, reason_of(error), noted_in, waits=False)

    def good(self, sensor: str, lake: FailedTicks, waits: str = "") -> None:
        """Record a successful tick. If it had to leave messages waiting, `waits` says why. The first successful tick of
        a process deletes the notes of earlier processes from the lake."""
        if waits:
            self._not_good(sensor, waits, lake, waits=True)
            return
        self._tell(sensor, None)
        if sensor not in self._cleared:
            lake.clear(sensor)
            self._cleared.add(sensor)

    def _not_good(self, sensor: str, reason: str, lake: FailedTicks | None, *, waits: bool) -> FailedTick:
        now = self._clock.now()
        self._cleared.discard(sensor)
        failed = FailedTick(sensor, 1, now, now, reason, waits)
        failed = self._tell(sensor, failed) or failed
        return failed if lake is None else lake.note(failed)

    def _tell(self, sensor: str, failed: FailedTick | None) -> FailedTick | None:
        """Write the outcome, merged with newer notes of other processes. Returns the failure merged with its earlier
        ones."""
        with self._lock:
            said = self._said.joined(None if self._file is None else read_word(self._file))
            before = said.sensors.get(sensor, SensorTicks())
            failed = failed and failed.after(before.failed)
            good = before.good if failed and not failed.waits else self._clock.now()
            self._said = replace(said, sensors={**said.sensors, sensor: SensorTicks(good, failed)})
            if self._file is None:
                return failed
            try:
                self._file.write(*ever_smaller(self._said), sync=(before.failed is None) != (failed is None))
            except OSError as error:
                if not self._warned:
                    logger.warning("%s cannot be written: %s. Notes go only to the lake", self._file.path, error)
                self._warned = True
            return failed
