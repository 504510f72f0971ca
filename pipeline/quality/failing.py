"""Finds unresolved failures. A failed run counts until its windows are computed, or its custom table succeeds. A failed
tick counts until its sensor succeeds. An overdue decision counts as well.

A process notes its ticks in memory, in a file next to `services.json`, and in the lake.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, iso, rough
from tidemark.pipeline.errors import LakeError, LakeOwned, NewerFormat
from tidemark.pipeline.lake.failures import FailedRun, FailedTick, FailedTicks, failed, reason_of
from tidemark.pipeline.lake.layout import OWN_TABLES, Lake
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.store.notes import JsonKind, SlotFile
from tidemark.pipeline.lake.tables.table import DataFile, LakeTable, data_files
from tidemark.pipeline.machine import ProcessName, own_process
from tidemark.pipeline.settings import ReadFrom, Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

LEAST_REASON = 40
"""The length, in characters, to which reasons are cut if the file is too small for all failing sensors."""


@dataclass(frozen=True, slots=True)
class SensorTicks:
    """The ticks of a sensor. `good` is the end of its last successful tick. `failed` is its failure since then, or the
    reason why it waits."""

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
        """The notes of the sensors that fail or wait."""
        return [ticks.failed for ticks in self.sensors.values() if ticks.failed]

    def joined(self, other: "Running | None") -> "Running":
        """Merge with another process's notes, if they are about the same lake. The newer note of each sensor is
        kept."""
        if other is None or other.lake != self.lake:
            return self
        sensors = dict(other.sensors)
        for name, ticks in self.sensors.items():
            sensors[name] = max(ticks, sensors.get(name, ticks), key=lambda each: each.heard)
        return replace(self, sensors=sensors)

    @property
    def stale_settings(self) -> str | None:
        """A sentence which says that the settings file has changed since the process read it. None if the file has not
        changed, or if the process has ended."""
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
    """Return the file for a pipeline's notes; None if the state folder does not exist, as in another Dagster
    project."""
    folder = settings.dagster.state_folder
    if not folder.is_absolute() or not folder.is_dir():
        return None
    return _file(folder / KIND.name(settings.pipeline_name))


def read_running(settings: Settings) -> Running | None:
    """Read the newest note of this pipeline's process on this machine; None if there is none. A process that read the
    same settings file counts even if it uses another lake: the file may have changed since."""
    folder = settings.dagster.state_folder
    mine, file = [], settings.read_from
    for path in folder.glob(KIND.name("*")) if folder.is_absolute() else ():
        said = read_word(_file(path))
        if said and (said.lake == settings.lake.uri or (file and said.settings and said.settings.path == file.path)):
            mine.append(said)
    return max(mine, key=lambda said: (said.process.runs(), said.process.since), default=None)


def read_word(file: SlotFile[Running]) -> Running | None:
    """Read a file of notes; None if it is unreadable, damaged, or of a later version."""
    with suppress(LakeError, OSError):
        return file.read()
    return None


def ever_smaller(said: Running) -> Iterator[Running]:
    """Yield the note, then shorter and shorter versions in case the file is too small. First the reasons are cut, then
    sensors are left out. The sensors that have failed longest are left out last."""
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
    """Records the ticks of one process's sensors. No call raises, and no decision depends on the notes. Thread-safe.

    The file is for readers on this machine. It is written first, because a full lake accepts no notes. The notes in the
    lake are for other machines.
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
        """Record a successful tick. If the tick had to leave messages waiting, `waits` says why. The first successful
        tick of a process deletes the notes of earlier processes from the lake."""
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
        """Write the outcome, merged with newer notes of other processes. Returns the failure, combined with the
        sensor's earlier failures."""
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


WINDOWS_STAND_FOR = timedelta(days=1)
"""The age at which a failure is dropped even if its windows are still not computed. Its run is retried every ten
minutes."""

DRAINS_STAND_FOR = timedelta(hours=1)
"""The age at which the failure of a run that reads the subscriptions is dropped. A later run deletes its notes."""

TICKS_MISSED, LOOKS_EVERY = 3, timedelta(seconds=5)
"""A decision is overdue after TICKS_MISSED ticks. Ticks are at least LOOKS_EVERY apart: Dagster's daemon evaluates
sensors at this interval."""

TRACKING = "tracking"
"""The name of the sensor that makes the decisions."""


def is_overdue(since: datetime, every: timedelta, now: datetime) -> bool:
    """True if an event that is due at the interval `every` and last happened at `since` is overdue."""
    return now - since > TICKS_MISSED * max(every, LOOKS_EVERY)


def with_age(said: str, decided_at: datetime, tick: timedelta, now: datetime) -> str:
    """Add a decision's age to its sentence if it is older than TICKS_MISSED ticks."""
    if not is_overdue(decided_at, tick, now):
        return said
    return (
        f"{said}. That was decided {rough(now - decided_at)} ago, and a decision is due every {format_duration(tick)}"
    )


@dataclass(frozen=True, slots=True)
class TicksNow:
    """The state of a pipeline's ticks. `failing` has the sensors that fail or wait, sorted by name. `standing` is a
    sentence if a decision is overdue. `settings` is a sentence if the settings file has changed since the running
    pipeline read it."""

    failing: Sequence[FailedTick]
    standing: str | None = None
    settings: str | None = None
    is_alive: bool = False

    @property
    def failures(self) -> list[str]:
        """Sentences about an overdue decision and failing ticks. A failure that the first sentence quotes is not
        repeated."""
        told = [one.sentence() for one in self.failing if not one.waits]
        return [*filter(None, [self.standing]), *(one for one in told if one not in (self.standing or ""))]

    @property
    def sentences(self) -> list[str]:
        """All warnings, one sentence each."""
        waiting = [one.sentence() for one in self.failing if one.waits]
        return [*self.failures, *filter(None, [self.settings]), *waiting]


def read_ticks(lake: Lake, settings: Settings, decision: Decision | None, now: datetime) -> TicksNow:
    """Read the state of the ticks from the newest decision, the notes in the lake, and the file outside of the lake,
    which is written even if the lake is full. Raises LakeError."""
    noted = lake.failed_ticks().newest()
    return ticks_now(settings, None if decision is None else decision.at, read_running(settings), noted, now)


def ticks_now(
    settings: Settings, decided_at: datetime | None, running: Running | None, noted: Sequence[FailedTick], now: datetime
) -> TicksNow:
    """Judge the ticks by the time of the newest decision, the process's newest note, and the lake's notes. Notes older
    than WINDOWS_STAND_FOR are ignored: their sensors no longer tick."""
    newest, tick = dict[str, FailedTick](), settings.watermark.tick
    overdue = decided_at is not None and is_overdue(decided_at, tick, now)
    here = running if running is not None and running.lake == settings.lake.uri else None
    if here is not None and here.process.has_ended() and not overdue:
        here = None  # the pipeline runs on another machine
    for one in sorted((*noted, *(here.failing if here else ())), key=lambda one: one.last):
        newest[one.sensor] = one.after(newest.get(one.sensor), more=0)
    good = {name: ticks.good for name, ticks in here.sensors.items()} if here else {}
    failing = [
        newest[sensor]
        for sensor in sorted(newest)
        if now - newest[sensor].last <= WINDOWS_STAND_FOR
        and (good.get(sensor) or EPOCH, not newest[sensor].waits) < (newest[sensor].last, True)
    ]
    standing = None
    if decided_at is not None and overdue:
        tracking = next((one for one in failing if one.sensor == TRACKING and not one.waits), None)
        standing = (
            f"no decision for {rough(now - decided_at)}, since {iso(decided_at)}, and one is due every "
            f"{format_duration(tick)}: {tracking.sentence() if tracking else _why(settings, here)}"
        )
    if running is None:
        return TicksNow(failing, standing)
    return TicksNow(failing, standing, running.stale_settings, running.process.runs())


def _why(settings: Settings, running: Running | None) -> str:
    """Explain why a decision is overdue if no tick of tracking has failed."""
    for folder in (settings.lake.folder, Path(settings.dagster.storage)):
        if folder is not None and (problem := why_unwritable(folder)):
            return problem
    if running is None:
        return (
            "its process has left no notes on this machine. Is the pipeline running? The logs of its code server and "
            "daemon say why ticks fail"
        )
    process = running.process
    if not process.is_near():
        return f"it ran on {process.host}. Look at the logs of its code server and daemon there"
    if process.has_ended():
        return f"its {process} has ended. Start the pipeline"
    return (
        f"its {process} is alive but gets no ticks. Is the sensor {TRACKING} on? The log of "
        "Dagster's daemon says what fails"
    )


@dataclass(frozen=True, slots=True)
class Failing:
    """Unresolved failures of runs: the number of kept notes, the time of the first and the last, the reason of the
    last, and the first and the last window that wait because of them. Without windows, these are runs of a custom
    `table`, or of a `job` that reads the subscriptions (the last run's job)."""

    failures: int
    since: datetime
    last: datetime
    reason: str
    first_window: str | None = None
    last_window: str | None = None
    job: str = ""
    table: str = ""

    @classmethod
    def of(cls, notes: Sequence[FailedRun], windows: Sequence[str] = (), table: str = "") -> "Failing | None":
        """Summarize unresolved notes, newest first; None if there are none."""
        if not notes:
            return None
        newest, job = notes[0], "" if windows or table else notes[0].job
        first, last = min(windows, default=None), max(windows, default=None)
        return cls(len(notes), notes[-1].at, newest.at, newest.reason, first, last, job, table)

    def sentence(self) -> str:
        """Describe the failures in one sentence."""
        runs = f" of {self.job}" if self.job else ""
        if self.table:
            runs = f" of the table {self.table}"
        elif self.first_window is not None:
            same = self.first_window == self.last_window
            runs = f" over {self.first_window}" if same else f" over windows from {self.first_window} on"
        return f"runs{runs} {failed(self.failures, self.since, self.last)}: {self.reason}"


def computed_at(files: Iterable[DataFile]) -> dict[str, datetime]:
    """Return the time of each computed window's newest commit, by the window's key."""
    found = dict[str, datetime]()
    for file in files:
        found[file.partition] = max(file.added_at, found.get(file.partition, file.added_at))
    return found


def read_failing(lake: Lake, windowing: Windowing, now: datetime) -> Failing | None:
    """Read the unresolved failures of a lake; None if there are none. The computed windows are read only if there is a
    note. Raises LakeError."""
    notes = lake.failed_runs().newest()
    return failing(notes, computed_at(_files(lake.diffs().table)), windowing, now) if notes else None


def failing(
    notes: Sequence[FailedRun], computed: Mapping[str, datetime], windowing: Windowing, now: datetime
) -> Failing | None:
    """Summarize the unresolved failures among `notes`, which are newest first; None if there are none. A failure is
    resolved when all its windows have been computed since."""
    standing, waiting = [], list[str]()
    for note in notes:
        if now - note.at > (WINDOWS_STAND_FOR if note.stretches else DRAINS_STAND_FOR):
            continue
        open_ends = [key for stretch in note.stretches for key in _waiting(note, stretch, computed, windowing)]
        if open_ends or not note.stretches:
            standing.append(note)
            waiting += open_ends
    return Failing.of(standing, waiting)


def read_failing_tables(lake: Lake, now: datetime) -> list[Failing]:
    """Read the failures of custom tables since their last success. A table without a failure in the last
    WINDOWS_STAND_FOR is left out. Only the logs of tables with a note are read. Raises LakeError."""
    found = []
    for name in lake.own_tables_with_failed_runs():
        notes = lake.failed_runs(name).newest()
        if notes and now - notes[0].at <= WINDOWS_STAND_FOR:
            files = _files(lake.table(f"{OWN_TABLES}/{name}"))
            committed = max((file.added_at for file in files), default=EPOCH)
            found.append(Failing.of([note for note in notes if note.at > committed], table=name))
    return [one for one in found if one is not None]


def _files(table: LakeTable) -> list[DataFile]:
    return data_files(table.current(), table.partition_column)


def _waiting(
    note: FailedRun, stretch: tuple[str, str], computed: Mapping[str, datetime], windowing: Windowing
) -> list[str]:
    """Return the first and the last window of the range `stretch` that have not been computed since the note. If all
    have, the list is empty."""
    try:
        numbers = range(*(windowing.number_of(windowing.named(key).start) for key in stretch))
    except ValueError:  # the note is about windows of another length, from before the settings changed
        return []
    keys = (windowing.numbered(number).key for number in (*numbers, numbers.stop))
    waiting = [key for key in keys if key not in computed or computed[key] < note.at]
    return [waiting[0], waiting[-1]] if waiting else []
