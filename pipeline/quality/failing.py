"""Which failures of runs still stand: those over windows that nothing has computed since, and those of a table of one's
own since its last success."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.clock import iso
from tidemark.pipeline.durations import format_duration, rough
from tidemark.pipeline.lake.layout import OWN_TABLES, Lake
from tidemark.pipeline.lake.tables.failures import KEPT, FailedRun, FailedTick
from tidemark.pipeline.lake.tables.table import data_files
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.windows import Windowing

WINDOWS_STAND_FOR = timedelta(days=1)
"""How long a failure over windows that stay uncomputed is spoken of. What keeps failing is tried every ten minutes."""

DRAINS_STAND_FOR = timedelta(hours=1)
"""The same for a run that reads the subscriptions, whose notes a later one deletes."""


TICKS_MISSED = 3
"""Ticks without a decision after which nobody seems to decide any more."""


def standstill(decision: Decision | None, tick: timedelta, now: datetime) -> list[str]:
    """The sentence that nobody decides, where the newest decision is too old; none where it is new, or where there is
    none yet. Told by what is not in the lake: a full one takes no note."""
    if decision is None or now - decision.at <= TICKS_MISSED * tick:
        return []
    return [
        f"nobody decides: the newest decision is {rough(now - decision.at)} old, and one is due every "
        f"{format_duration(tick)}. Is the pipeline running, and is there room for its lake? The logs of its code "
        "server and daemon say why ticks fail"
    ]


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
        times = f"{self.failures} times since {iso(self.since)}, last" if self.failures > 1 else "once,"
        windows = f" of {self.job}" if self.job else ""
        if self.first_window is not None:
            same = self.first_window == self.last_window
            windows = f" over {self.first_window}" if same else f" over windows from {self.first_window} on"
        return f"runs{windows} failed {times} at {iso(self.last)}: {self.reason}"


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


def read_failing_ticks(lake: Lake, now: datetime) -> list[FailedTick]:
    """The sensors whose newest tick failed, by name. A note of long ago is of a sensor that no longer ticks. Raises
    LakeError."""
    return [failed for failed in lake.failed_ticks().newest() if now - failed.last <= WINDOWS_STAND_FOR]


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
