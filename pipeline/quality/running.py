"""What a pipeline's process says of itself outside of the lake, in a file beside `services.json`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.store.notes import JsonKind
from tidemark.pipeline.lake.store.slots import SlotFile
from tidemark.pipeline.lake.tables.failures import FailedTick
from tidemark.pipeline.machine import ProcessName, own_process
from tidemark.pipeline.settings import ReadFrom, Settings

LEAST_REASON = 40
"""Characters to which reasons are cut where more sensors fail than the file has room for."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that ticks sensors: which lake it writes, which settings it has read, when each sensor's last good tick
    ended, and the sensors whose ticks fail."""

    lake: str
    process: ProcessName
    settings: ReadFrom | None
    good: Mapping[str, datetime] = field(default_factory=dict)
    failing: Sequence[FailedTick] = ()

    @classmethod
    def this_process(cls, settings: Settings) -> "Running":
        """This process, before its first tick."""
        return cls(settings.lake.uri, own_process(), settings.read_from)

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
    failing = [replace(one, reason=one.reason[:LEAST_REASON]) for one in failing]
    while failing:
        yield replace(said, failing=failing)
        failing = failing[: len(failing) // 2]
    yield replace(said, failing=(), good={})


def _file(path: Path) -> SlotFile[Running]:
    return SlotFile(path, KIND, mode=0o600)  # reasons may be of data
