"""What a pipeline's process says of itself outside of the lake, in a file beside `services.json`."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.lake.store.notes import JsonKind
from tidemark.pipeline.lake.store.slots import SlotFile
from tidemark.pipeline.machine import ProcessName, own_process
from tidemark.pipeline.settings import ReadFrom, Settings

LEAST_REASON = 40
"""Characters to which reasons are cut where more sensors fail than the file has room for."""


@dataclass(frozen=True, slots=True)
class SensorTicks:
    """The ticks of a sensor: when the last good one ended, and the failure since, or why the sensor waits."""

    good: datetime | None = None
    failed: FailedTick | None = None

    @property
    def heard(self) -> datetime:
        """When the last one ended."""
        return max(self.good or EPOCH, self.failed.last if self.failed else EPOCH)


@dataclass(frozen=True, slots=True)
class Running:
    """A process that ticks sensors: which lake it writes, which settings it has read, and how the ticks go."""

    lake: str
    process: ProcessName
    settings: ReadFrom | None
    sensors: Mapping[str, SensorTicks] = field(default_factory=dict)

    @classmethod
    def this_process(cls, settings: Settings) -> "Running":
        """This process, before its first tick."""
        return cls(settings.lake.uri, own_process(), settings.read_from)

    @property
    def failing(self) -> list[FailedTick]:
        """The sensors whose ticks fail, or that wait."""
        return [ticks.failed for ticks in self.sensors.values() if ticks.failed]

    def joined(self, other: "Running | None") -> "Running":
        """This process, with what another one has said of the same lake's sensors since."""
        if other is None or other.lake != self.lake:
            return self
        sensors = dict(other.sensors)
        for name, ticks in self.sensors.items():
            sensors[name] = max(ticks, sensors.get(name, ticks), key=lambda each: each.heard)
        return replace(self, sensors=sensors)

    @property
    def stale_settings(self) -> str | None:
        """The sentence that its settings file is not any more what it has read; None if it is, or it has ended."""
        if self.settings is None or not self.process.runs():
            return None
        file, when = Path(self.settings.path), "is gone"
        with suppress(OSError):
            if ReadFrom.of(file, file.read_bytes()) == self.settings:
                return None
            when = f"changed at {datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return (
            f"the settings file {file} {when}, and {self.process} goes on with what it read when it began: restart "
            "`tidemark up`, or the code server, to use the file as it is"
        )


KIND: JsonKind[Running] = JsonKind("", holds=Running, suffix=".running.json")


def file_of(settings: Settings) -> SlotFile[Running] | None:
    """The file of a pipeline; None where there is no folder for it, as in a project of somebody else's."""
    folder = settings.dagster.state_folder
    if not folder.is_absolute() or not folder.is_dir():
        return None
    return _file(folder / KIND.name(settings.pipeline_name))


def read_running(settings: Settings) -> Running | None:
    """What the process of these settings' pipeline said last on this machine; None without a word from it. A process
    that has read the same file counts as well: the file may name another lake by now."""
    folder = settings.dagster.state_folder
    mine, file = [], settings.read_from
    for path in folder.glob(KIND.name("*")) if folder.is_absolute() else ():
        said = read_word(_file(path))
        if said and (said.lake == settings.lake.uri or (file and said.settings and said.settings.path == file.path)):
            mine.append(said)
    return max(mine, key=lambda said: (said.process.runs(), said.process.since), default=None)


def read_word(file: SlotFile[Running]) -> Running | None:
    """What a file says; None where it cannot be read, is damaged, or is of a later version."""
    with suppress(LakeError, OSError):
        return file.read()
    return None


def ever_smaller(said: Running) -> Iterator[Running]:
    """What is said, then less and less of it, for where more fails than the file has room for: reasons are cut, then
    sensors are left out, those that have failed longest last."""
    yield said
    failing = sorted(said.failing, key=lambda one: one.since)
    while failing:
        cut = {one.sensor: replace(one, reason=one.reason[:LEAST_REASON]) for one in failing}
        sensors = {name: replace(ticks, failed=cut.get(name)) for name, ticks in said.sensors.items()}
        yield replace(said, sensors=sensors)
        failing = failing[: len(failing) // 2]
    yield replace(said, sensors={})


def _file(path: Path) -> SlotFile[Running]:
    return SlotFile(path, KIND, mode=0o600)  # reasons may be of data
