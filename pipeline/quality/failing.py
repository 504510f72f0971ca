"""Finds unresolved failures of runs and sensor ticks, and overdue decisions.

A failed run counts as unresolved until its windows are computed. A failed run of `ingest` counts until a later one
succeeds, for an hour at most. A failed tick counts until its sensor succeeds. A failure older than a day counts only
if its custom table failed again. Ticks are recorded in memory, in a file next to `services.json`, and in the lake."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, iso, rough
from tidemark.pipeline.errors import CorruptObject, LakeError, LakeOwned, NewerFormat
from tidemark.pipeline.lake.failures import FailedRun, FailedTick, FailedTicks, failed, reason_of
from tidemark.pipeline.lake.layout import OWN_TABLES, Lake
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.store.notes import JsonKind, SlotFile
from tidemark.pipeline.lake.tables.table import DataFile, by_partition
from tidemark.pipeline.lake.tables.windowed import noted_length
from tidemark.pipeline.machine import ProcessName, own_process
from tidemark.pipeline.settings import ReadFrom, Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing


@dataclass(frozen=True, slots=True)
class SensorTicks:
    """The outcome of a sensor's ticks. `good` is the end of the last successful tick; None before the first. `failed`
    describes the failed ticks since then; None if there are none. If the last successful tick had to leave messages
    unread, `failed` says why."""

    good: datetime | None = None
    failed: FailedTick | None = None

    @property
    def heard(self) -> datetime:
        """The end of the last tick."""
        return max(self.good or EPOCH, self.failed.last if self.failed else EPOCH)


@dataclass(frozen=True, slots=True)
class Running:
    """A process's record of its sensors' ticks, which is stored in a file. `sensors` contains the outcome per sensor,
    and `settings` is the settings file that the process read."""

    lake: str
    process: ProcessName
    settings: ReadFrom | None
    sensors: Mapping[str, SensorTicks] = field(default_factory=dict)

    @classmethod
    def this_process(cls, settings: Settings) -> "Running":
        return cls(settings.lake.uri, own_process(), settings.read_from)

    @property
    def failing(self) -> list[FailedTick]:
        return [ticks.failed for ticks in self.sensors.values() if ticks.failed]

    def joined(self, other: "Running | None") -> "Running":
        """Merge this record with another process's record, and keep the newer outcome of each sensor. If `other` is
        None or about another lake, return this record unchanged."""
        if other is None or other.lake != self.lake:
            return self
        sensors = dict(other.sensors)
        for name, ticks in self.sensors.items():
            sensors[name] = max(ticks, sensors.get(name, ticks), key=lambda each: each.heard)
        return replace(self, sensors=sensors)

    @property
    def stale_settings(self) -> str | None:
        """A sentence that says how the settings file has changed since the process read it. None if the file has not
        changed, if the process has ended, or if it read no file."""
        if self.settings is None or not self.process.runs():
            return None
        file, when, then = Path(self.settings.path), "is gone", "restore the file before the next restart"
        with suppress(OSError):
            if ReadFrom.of(file, file.read_bytes()) == self.settings:
                return None
            when = f"changed at {datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
            then = "restart `tidemark up`, or the code server, to use the current file"
        does = f"{self.process} still uses the settings that it read at its start"
        return f"the settings file {file} {when}, but {does}: {then}"


KIND: JsonKind[Running] = JsonKind("", holds=Running, suffix=".running.json")


def file_of(settings: Settings) -> SlotFile[Running] | None:
    """Return the file in which this pipeline's process records its ticks. None if the state folder does not exist, as
    in a user's own Dagster project."""
    folder = settings.dagster.state_folder
    if not folder.is_absolute() or not folder.is_dir():
        return None
    return _file(folder / KIND.name(settings.pipeline_name))


def read_running(settings: Settings) -> Running | None:
    """Return the record of ticks that the newest process of this pipeline left on this machine; None if there is none.
    A process that still runs takes precedence. A process belongs to this pipeline if it uses the same lake or has read
    the same settings file, even if that file named another lake at that time.
    """
    folder = settings.dagster.state_folder
    mine, file = [], settings.read_from
    for path in folder.glob(KIND.name("*")) if folder.is_absolute() else ():
        said = read_word(_file(path))
        if said and (said.lake == settings.lake.uri or (file and said.settings and said.settings.path == file.path)):
            mine.append(said)
    return max(mine, key=lambda said: (said.process.runs(), said.process.since), default=None)


def read_word(file: SlotFile[Running]) -> Running | None:
    """Read a process's record from a file; None if the file is missing, unreadable, damaged, or written by a later
    version."""
    with suppress(LakeError, OSError):
        return file.read()
    return None


def _file(path: Path) -> SlotFile[Running]:
    return SlotFile(path, KIND, mode=0o600)  # reasons may contain message data


logger = logging.getLogger(__name__)


class TickNotes:
    """Records the outcome of the ticks of one process's sensors, both in a file on this machine and in the lake.

    The file is written first, so that an error of the lake, such as a full disk, does not prevent this write. No method
    raises an error, and no decision depends on these records. Thread-safe.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._file = file_of(settings)
        self._said = Running.this_process(settings)
        self._cleared = set[str]()
        self._warned = False

    def failed(self, sensor: str, error: BaseException, lake: FailedTicks | None) -> FailedTick:
        """Record a failed tick. Return a summary of all failed ticks of the sensor since its last successful one.
        Nothing is written to the lake if it belongs to another pipeline or was written by a later version of
        tidemark."""
        noted_in = None if isinstance(error, LakeOwned | NewerFormat) else lake
        return self._not_good(sensor, reason_of(error), noted_in, waits=False)

    def good(self, sensor: str, lake: FailedTicks, waits: str = "") -> None:
        """Record a tick that did not fail. If the tick had to leave messages unread, `waits` says why, and is recorded.
        Otherwise, delete the sensor's record in the lake, unless this process has already deleted it since the sensor
        last failed or left messages unread."""
        if waits:
            self._not_good(sensor, waits, lake, waits=True)
            return
        self._tell(sensor, None)
        if sensor not in self._cleared and lake.clear(sensor):
            self._cleared.add(sensor)

    def _not_good(self, sensor: str, reason: str, lake: FailedTicks | None, *, waits: bool) -> FailedTick:
        now = self._clock.now()
        self._cleared.discard(sensor)
        failed = FailedTick(sensor, 1, now, now, reason, waits)
        failed = self._tell(sensor, failed) or failed
        return failed if lake is None else lake.note(failed)

    def _tell(self, sensor: str, failed: FailedTick | None) -> FailedTick | None:
        with self._lock:
            said = self._said.joined(None if self._file is None else read_word(self._file))
            before = said.sensors.get(sensor, SensorTicks())
            failed = failed and failed.after(before.failed)
            good = before.good if failed and not failed.waits else self._clock.now()
            self._said = replace(said, sensors={**said.sensors, sensor: SensorTicks(good, failed)})
            if self._file is None:
                return failed
            try:
                self._file.write(self._said, sync=(before.failed is None) != (failed is None))
            except OSError as error:
                if not self._warned:
                    logger.warning("%s cannot be written: %s. Failed ticks go only to the lake", self._file.path, error)
                self._warned = True
            return failed


WINDOWS_STAND_FOR = timedelta(days=1)
"""Age after which a failed tick, or a failed run that computes windows, no longer counts as unresolved. A run that
keeps failing is retried at least every ten minutes, so it always has a newer failure."""

DRAINS_STAND_FOR = timedelta(hours=1)
"""Age after which a failed run that reads the subscriptions no longer counts as unresolved. If a run of the same job
succeeds earlier, it deletes the record of the failure."""

TICKS_MISSED, LOOKS_EVERY = 3, timedelta(seconds=5)
"""A decision is overdue after TICKS_MISSED tick intervals without a decision. For this purpose, an interval is at least
LOOKS_EVERY, because Dagster's daemon evaluates sensors only that often."""

TRACKING = "tracking"


def is_overdue(since: datetime, every: timedelta, now: datetime) -> bool:
    """Return True if an event that should happen at the interval `every`, and last happened at `since`, is overdue."""
    return now - since > TICKS_MISSED * max(every, LOOKS_EVERY)


@dataclass(frozen=True, slots=True)
class TicksNow:
    """The state of a pipeline's ticks.

    `failing`: the failures of sensors that fail or wait, sorted by sensor name.
    `standing`: a sentence if a decision is overdue, or if the newest one is in the future.
    `settings`: a sentence if the settings file has changed since the running pipeline read it.
    `is_alive`: true if the pipeline's process runs on this machine.
    """

    failing: Sequence[FailedTick]
    standing: str | None = None
    settings: str | None = None
    is_alive: bool = False

    @property
    def failures(self) -> list[str]:
        """Sentences about an overdue decision and about failing sensors, without repetitions."""
        sentences = [one.sentence() for one in self.failing if not one.waits]
        return [*filter(None, [self.standing]), *(one for one in sentences if one not in (self.standing or ""))]

    @property
    def sentences(self) -> list[str]:
        """All warnings about ticks and the settings file, one sentence each."""
        waiting = [one.sentence() for one in self.failing if one.waits]
        return [*self.failures, *filter(None, [self.settings]), *waiting]


def read_ticks(lake: Lake, settings: Settings, decision: Decision | None, now: datetime) -> TicksNow:
    """Return the state of the ticks, given the newest decision. Reads the failures recorded in the lake, and the
    process's record on this machine. Raises LakeError."""
    noted, decided_at, damage = lake.failed_ticks().newest(), None if decision is None else decision.at, ""
    if decided_at is not None and is_overdue(decided_at, settings.watermark.tick, now):
        try:
            lake.tracking_log().catch_up_to_append()
        except CorruptObject as error:
            damage = str(error)
    return ticks_now(settings, decided_at, read_running(settings), noted, now, damage)


def ticks_now(
    settings: Settings,
    decided_at: datetime | None,
    running: Running | None,
    noted: Sequence[FailedTick],
    now: datetime,
    damage: str = "",
) -> TicksNow:
    """Return the state of the ticks. `decided_at` is the time of the newest decision, `running` the record of the
    running process, `noted` the failures recorded in the lake, and `damage` says what is wrong with the tracking log.
    Failures older than WINDOWS_STAND_FOR are ignored."""
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
        why = tracking.sentence() if tracking else damage or _why(settings, here)
        # SQLite reports a full disk as "disk I/O error", without the disk's name.
        if tracking and (problem := why_unwritable(Path(settings.dagster.storage))):
            why = f"{why}. Now {problem}"
        standing = (
            f"no decision for {rough(now - decided_at)}, since {iso(decided_at)}, although one is due every "
            f"{format_duration(tick)}: {why}"
        )
    elif decided_at is not None and is_overdue(now, tick, decided_at):
        standing = (
            f"the newest decision is dated {iso(decided_at)}, {rough(decided_at - now)} from now: the clock was set "
            "back, or is behind the clock of the machine that decides. Correct a wrong clock. If the clock was set "
            "back, the watermark holds, and Dagster's daemon starts no ticks, until the clock shows that time again"
        )
    if running is None:
        return TicksNow(failing, standing)
    return TicksNow(failing, standing, running.stale_settings, running.process.runs())


def _why(settings: Settings, running: Running | None) -> str:
    """Return the probable reason why a decision is overdue, if no tick of the sensor `tracking` has failed."""
    for folder in (settings.lake.folder, Path(settings.dagster.storage)):
        if folder is not None and (problem := why_unwritable(folder)):
            return problem
    if running is None:
        return (
            "no running process of the pipeline has recorded a tick on this machine. The logs of its code server and "
            "daemon say why"
        )
    process = running.process
    if not process.is_near():
        return f"the pipeline ran on {process.host}. Look at the logs of its code server and daemon there"
    if process.has_ended():
        return f"the pipeline's {process} has ended. Start the pipeline, unless a `tidemark up` is starting it again"
    if process.is_paused():
        return f"a signal has paused the pipeline's {process}. Resume it: `kill -CONT {process.process}`"
    return (
        f"the pipeline's {process} is alive but gets no ticks. Is the sensor {TRACKING} on? The log of "
        "Dagster's daemon says what fails"
    )


@dataclass(frozen=True, slots=True)
class Failing:
    """A summary of unresolved failures of runs: their number, the times of the first (`since`) and the last one, and
    the reason of the last one.

    For runs over windows, `first_window` and `last_window` are the first and the last window still to be computed. For
    runs of a custom table, `table` is its name. For runs that read the subscriptions, `job` is the job of the last one.
    """

    failures: int
    since: datetime
    last: datetime
    reason: str
    first_window: str | None = None
    last_window: str | None = None
    job: str = ""
    table: str = ""

    @classmethod
    def of(cls, notes: Sequence[FailedRun], windows: Sequence[str] = (), table: str = "") -> "Failing":
        """Return a summary of these unresolved failures. There must be at least one, and the newest must be first."""
        newest, job = notes[0], "" if windows or table else notes[0].job
        first, last = min(windows, default=None), max(windows, default=None)
        return cls(len(notes), notes[-1].at, newest.at, newest.reason, first, last, job, table)

    def sentence(self) -> str:
        runs = f" of {self.job}" if self.job else ""
        if self.table:
            runs = f" of the table {self.table}"
        elif self.first_window is not None:
            same = self.first_window == self.last_window
            runs = f" over {self.first_window}" if same else f" over windows from {self.first_window} on"
        return f"runs{runs} {failed(self.failures, self.since, self.last)}: {self.reason}"


def computed_at(files: Iterable[DataFile]) -> dict[str, datetime]:
    """Return, for each window key, the time at which the window was last computed. `files` are the files of a windowed
    table."""
    return {key: max(file.added_at for file in of_window) for key, of_window in by_partition(files).items()}


def read_failing(lake: Lake, windowing: Windowing, now: datetime) -> Failing | None:
    """Return the unresolved failures of runs that compute windows or read the subscriptions; None if there are none.
    `heartbeat_diffs` is read only if a run has failed. Raises LakeError."""
    notes = lake.failed_runs().newest()
    return failing(notes, computed_at(lake.diffs().table.files()), windowing.length, now) if notes else None


def failing(
    notes: Sequence[FailedRun],
    computed: Mapping[str, datetime],
    length: timedelta | None,
    now: datetime,
    table: str = "",
) -> Failing | None:
    """Return a summary of the unresolved failures among `notes` (newest first); None if there are none.

    A failed run over windows is resolved when all its windows have been computed after the failure, or now have a
    different length. `length` is the current length. If it is None (unknown), only the ends of a stretch and the
    computed windows between them are checked.

    `table` is the name of a custom table. Its failed run without windows is resolved when any of its windows has been
    computed after the failure. Without `table`, old failures are ignored (see WINDOWS_STAND_FOR and DRAINS_STAND_FOR).
    """
    standing, waiting, newest = list[FailedRun](), list[str](), max(computed.values(), default=EPOCH)
    for note in notes:
        if not table and now - note.at > (WINDOWS_STAND_FOR if note.stretches else DRAINS_STAND_FOR):
            continue
        since = note.at if note.at <= now else EPOCH  # the clock was set back: every computation counts as later
        open_ends = [key for stretch in note.stretches for key in _waiting(since, stretch, computed, length)]
        if open_ends or not (note.stretches or (table and newest > since)):
            standing.append(note)
            waiting += open_ends
    return Failing.of(standing, waiting, table) if standing else None


def read_failing_tables(lake: Lake, now: datetime) -> list[Failing]:
    """Return a summary of the unresolved failures of each custom table that has any. A table is left out if its newest
    failure is older than WINDOWS_STAND_FOR. Raises LakeError."""
    found = list[Failing | None]()
    for name in lake.own_tables_with_failed_runs():
        notes = lake.failed_runs(name).newest()
        if notes and now - notes[0].at <= WINDOWS_STAND_FOR:
            computed, length = dict[str, datetime](), None
            with suppress(CorruptObject):  # in a damaged table, no later commit is known
                place = lake.table(f"{OWN_TABLES}/{name}")
                if table := place.current():
                    computed, length = computed_at(place.files(at=table)), noted_length(table)
            found.append(failing(notes, computed, length, now, name))
    return [one for one in found if one is not None]


def _waiting(
    since: datetime, stretch: tuple[str, str], computed: Mapping[str, datetime], length: timedelta | None
) -> list[str]:
    """Return the first and the last of a stretch's windows that have not been computed since a moment; nothing if all
    have been computed."""
    first, last = stretch
    keys = {first, last}.union(key for key in computed if first < key < last)
    if length:
        try:
            bounds = [Windowing(length, EPOCH).named(key).start for key in stretch]
        except ValueError:  # the note is about windows of another length, from before the settings changed
            return []
        keys = {window.key for window in Windowing(length, EPOCH).between(bounds[0], bounds[1] + length)}
    waiting = [key for key in keys if key not in computed or computed[key] < since]
    return [min(waiting), max(waiting)] if waiting else []
