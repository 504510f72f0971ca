"""What fails now. Of runs: those over windows that nothing has computed since, and those of a table of one's own since
its last success. Of ticks: those of sensors without a good one since, and that nobody decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tidemark.pipeline.clock import EPOCH, iso
from tidemark.pipeline.durations import format_duration, rough
from tidemark.pipeline.lake.failures import KEPT, FailedRun, FailedTick, failed
from tidemark.pipeline.lake.layout import OWN_TABLES, Lake
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.tables.table import data_files
from tidemark.pipeline.quality.running import Running, read_running
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

WINDOWS_STAND_FOR = timedelta(days=1)
"""How long a failure over windows that stay uncomputed is spoken of. What keeps failing is tried every ten minutes."""

DRAINS_STAND_FOR = timedelta(hours=1)
"""The same for a run that reads the subscriptions, whose notes a later one deletes."""


TICKS_MISSED, LOOKS_EVERY = 3, timedelta(seconds=5)
"""Ticks without a decision after which nobody seems to decide any more. Dagster's daemon looks at sensors that often,
so ticks are not closer together."""

TRACKING = "tracking"
"""The sensor that decides."""


def is_overdue(since: datetime, every: timedelta, now: datetime) -> bool:
    """Whether what is to happen again `every` so often has not happened since."""
    return now - since > TICKS_MISSED * max(every, LOOKS_EVERY)


def with_age(said: str, decided_at: datetime, tick: timedelta, now: datetime) -> str:
    """What is said of a decision, and how old that is where it is older than TICKS_MISSED ticks."""
    if not is_overdue(decided_at, tick, now):
        return said
    return (
        f"{said}. That was decided {rough(now - decided_at)} ago, and a decision is due every {format_duration(tick)}"
    )


@dataclass(frozen=True, slots=True)
class TicksNow:
    """How a pipeline's ticks go: the sensors whose ticks fail or wait, by name; the sentence that nobody decides; and
    the one that the settings file is not any more what the running pipeline has read."""

    failing: Sequence[FailedTick]
    standing: str | None = None
    settings: str | None = None
    is_alive: bool = False

    @property
    def failures(self) -> list[str]:
        """That nobody decides, and which ticks fail; why nobody decides is said once."""
        told = [one.sentence() for one in self.failing if not one.waits]
        return [*filter(None, [self.standing]), *(one for one in told if one not in (self.standing or ""))]

    @property
    def sentences(self) -> list[str]:
        """All of it, a warning each."""
        waiting = [one.sentence() for one in self.failing if one.waits]
        return [*self.failures, *filter(None, [self.settings]), *waiting]


def read_ticks(lake: Lake, settings: Settings, decision: Decision | None, now: datetime) -> TicksNow:
    """How ticks go, by the newest decision, by the notes in the lake, and by what is not in the lake, since a full one
    takes no note. Raises LakeError."""
    noted = lake.failed_ticks().newest()
    return ticks_now(settings, None if decision is None else decision.at, read_running(settings), noted, now)


def ticks_now(
    settings: Settings, decided_at: datetime | None, running: Running | None, noted: Sequence[FailedTick], now: datetime
) -> TicksNow:
    """The same of what was read: when the newest decision was made, what the process said last, and the lake's notes. A
    note of long ago is of a sensor that no longer ticks."""
    newest, tick = dict[str, FailedTick](), settings.watermark.tick
    overdue = decided_at is not None and is_overdue(decided_at, tick, now)
    here = running if running is not None and running.lake == settings.lake.uri else None
    if here is not None and here.process.has_ended() and not overdue:
        here = None  # another machine goes on
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
            f"nobody has decided for {rough(now - decided_at)}, since {iso(decided_at)}, and a decision is due every "
            f"{format_duration(tick)}: {tracking.sentence() if tracking else _why(settings, here)}"
        )
    if running is None:
        return TicksNow(failing, standing)
    return TicksNow(failing, standing, running.stale_settings, running.process.runs())


def _why(settings: Settings, running: Running | None) -> str:
    """Why nobody decides, where no tick of tracking has failed."""
    for folder in (settings.lake.folder, Path(settings.dagster.storage)):
        if folder is not None and (problem := why_unwritable(folder)):
            return problem
    if running is None:
        return (
            "there is no word from its process on this machine. Is the pipeline running? The logs of its code server "
            "and daemon say why ticks fail"
        )
    process = running.process
    if not process.is_near():
        return f"it ran on {process.host}. Look at the logs of its code server and daemon there"
    if process.has_ended():
        return f"its {process} has ended. Start the pipeline"
    return (
        f"its {process} lives and is not asked for ticks. Is the sensor {TRACKING} on? The log of "
        "Dagster's daemon says what fails"
    )


@dataclass(frozen=True, slots=True)
class Failing:
    """Failures that stand: how many of the notes that the lake keeps, when the first and the last of them were, the
    last one's reason, and the first and the last window that wait because of them. Without windows, only runs that read
    the subscriptions failed, and `job` is the last one's."""

    failures: int
    since: datetime
    last: datetime
    reason: str
    first_window: str | None
    last_window: str | None
    job: str = ""

    def sentence(self) -> str:
        """All of it as one sentence."""
        windows = f" of {self.job}" if self.job else ""
        if self.first_window is not None:
            same = self.first_window == self.last_window
            windows = f" over {self.first_window}" if same else f" over windows from {self.first_window} on"
        return f"runs{windows} {failed(self.failures, self.since, self.last)}: {self.reason}"


def read_failing(lake: Lake, windowing: Windowing, now: datetime) -> Failing | None:
    """The failures that stand in a lake; None without any. It reads the computed windows only if there is a note.
    Raises LakeError."""
    notes = lake.failed_runs().newest()
    if not notes:
        return None
    table, computed_at = lake.diffs().table, dict[str, datetime]()
    for file in data_files(table.current(), table.partition_column):
        computed_at[file.partition] = max(file.added_at, computed_at.get(file.partition, file.added_at))
    return failing(notes, computed_at, windowing, now)


def failing(
    notes: Sequence[FailedRun], computed_at: Mapping[str, datetime], windowing: Windowing, now: datetime
) -> Failing | None:
    """The failures that stand, of notes that are newest first; None without any. A failure is over once each of its
    windows was computed after it."""
    standing, waiting = [], list[str]()
    for note in notes:
        if now - note.at > (WINDOWS_STAND_FOR if note.stretches else DRAINS_STAND_FOR):
            continue
        open_ends = [key for stretch in note.stretches for key in _waiting(note, stretch, computed_at, windowing)]
        if open_ends or not note.stretches:
            standing.append(note)
            waiting += open_ends
    if not standing:
        return None
    return Failing(
        failures=len(standing),
        since=standing[-1].at,
        last=standing[0].at,
        reason=standing[0].reason,
        first_window=min(waiting, default=None),
        last_window=max(waiting, default=None),
        job="" if waiting else standing[0].job,
    )


@dataclass(frozen=True, slots=True)
class FailingTable:
    """A table of one's own whose runs have failed since one succeeded: how many of the notes that the lake keeps, when
    the first and the last of them were, and the last one's reason."""

    table: str
    failures: int
    since: datetime
    last: datetime
    reason: str

    def sentence(self) -> str:
        """All of it as one sentence."""
        if self.failures == 1:
            return f"the last run of the table {self.table} failed at {iso(self.last)}: {self.reason}"
        more = " or more" if self.failures == KEPT else ""
        newest = f"the newest at {iso(self.last)}: {self.reason}"
        return f"the last {self.failures}{more} runs of the table {self.table} failed since {iso(self.since)}, {newest}"


def read_failing_tables(lake: Lake, now: datetime) -> list[FailingTable]:
    """The tables of one's own whose runs fail. A table that nobody has tried for WINDOWS_STAND_FOR is left out. Only of
    a table with a note its log is read. Raises LakeError."""
    found = []
    for name in lake.own_tables_with_failed_runs():
        notes = lake.failed_runs(name).newest()
        if not notes or now - notes[0].at > WINDOWS_STAND_FOR:
            continue
        table = lake.table(f"{OWN_TABLES}/{name}")
        committed = [file.added_at for file in data_files(table.current(), table.partition_column)]
        standing = [note for note in notes if not committed or note.at > max(committed)]
        if standing:
            last = standing[0]
            found.append(FailingTable(name, len(standing), standing[-1].at, last.at, last.reason))
    return found


def _waiting(
    note: FailedRun, stretch: tuple[str, str], computed_at: Mapping[str, datetime], windowing: Windowing
) -> list[str]:
    """The first and the last window of a stretch that were not computed after the note; none if all were."""
    try:
        numbers = range(*(windowing.number_of(windowing.named(key).start) for key in stretch))
    except ValueError:  # windows of another length, before the settings changed
        return []
    keys = (windowing.numbered(number).key for number in (*numbers, numbers.stop))
    waiting = [key for key in keys if key not in computed_at or computed_at[key] < note.at]
    return [waiting[0], waiting[-1]] if waiting else []
