"""Missed heartbeats: what landed after its window was computed, and the windows that are stale by it.

A window was computed from one version of `heartbeats`, which its run's manifest names. A heartbeat that *first* landed
with a later version was not read: its own window missed it, and every computed window whose lookback reaches it is
stale as well. Copies of what had landed before (same stream, event time, and publisher's id or else message id) bring
nothing new, nor does compaction, whose commits say so.

What is looked at are the two tables' own logs, from where the last check stopped. A file of new heartbeats is opened
only if it may hold event times that a window was computed without.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import from_us, to_us, us
from pipeline.errors import ObjectMissing
from pipeline.lake.arrivals import ARRIVED, Arrivals, earliest
from pipeline.lake.delta_log import AddedFile, DeltaLog
from pipeline.lake.diffs import HeartbeatDiffs
from pipeline.lake.tables import LakeTable
from pipeline.watermark.histogram import Ints
from pipeline.windows import Window, Windowing

COMMITS_KEPT = 2000
"""Of the newest versions, what they added is remembered: a run that has read one of them may still commit."""


@dataclass(frozen=True, slots=True, order=True)
class StaleWindow:
    """A computed window whose input has grown since: by heartbeats of its own, or by some in its lookback. Without
    `computed_from`, its run's manifest is gone, and nobody can say what it has read."""

    window: Window
    missed: int
    missed_before: int
    computed_from: int | None

    @property
    def sentence(self) -> str:
        """Why it is stale."""
        if self.computed_from is None:
            return f"{self.window}: the manifest of its run is gone, and with it what it was computed from"
        return (
            f"{self.window}: computed from version {self.computed_from} of heartbeats, without {self.missed} of its "
            f"own and {self.missed_before} in its lookback"
        )


@dataclass(frozen=True, slots=True)
class Missed:
    """What landed after its window was computed, as of these versions of the two tables.

    Each heartbeat is counted once, in its own window, until that has been computed again; then it is `mended`, which
    is counted since the lake's first check.
    """

    heartbeats_version: int = -1
    diffs_version: int = -1
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    stale: Sequence[StaleWindow] = ()
    mended: int = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.by_window.values())


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check leaves for the next: how far it looked, in which tables; the heartbeats that some computed window
    has not read (columns of ARRIVED); the computed windows whose run's manifest is gone."""

    tables: tuple[str, str]
    heartbeats_version: int = -1
    diffs_version: int = -1
    arrived: pa.Table = field(default_factory=ARRIVED.empty_table)
    without_manifest: frozenset[str] = frozenset()
    mended: int = 0


class Staleness:
    """Checks one lake, again and again; each check looks only at what has changed since. One user at a time.

    Assumptions: a heartbeat stays in the table as long as its window does; copies share stream and event time; since
    the last check (the first time: since the oldest run whose windows stand) neither the tables' logs nor the files
    that they name have been removed: vacuum keeps what compaction replaced for longer than checks are apart. Where
    that does not hold, `check` raises ObjectMissing.
    """

    def __init__(
        self,
        heartbeats: LakeTable,
        diffs: HeartbeatDiffs,
        windowing: Windowing,
        lookback: timedelta,
        checked: Checked | None = None,
    ) -> None:
        """Go on from what an earlier check left, else from nothing."""
        self.checked = checked
        self._heartbeats = heartbeats
        self._diffs = diffs
        self._reach = Reach(windowing, lookback)
        self._heartbeats_log = DeltaLog(heartbeats, "event_time")
        self._diffs_log = DeltaLog(diffs.table)
        self._arrivals = Arrivals(heartbeats, self._heartbeats_log)
        self._missed: Missed | None = None
        self._computed: Mapping[str, int] = {}
        self._computed_at = -1

    def check(self) -> Missed:
        """What is missed and stale now. Raises LakeError, ObjectMissing among them."""
        # In this order: a window that is computed in between may have read more than this version, never less.
        heartbeats, diffs = self._heartbeats.current(), self._diffs.table.current()
        if heartbeats is None or diffs is None:
            return Missed()
        now = (heartbeats.version(), diffs.version())
        before = self._before((str(heartbeats.metadata().id), str(diffs.metadata().id)), now)
        if self._missed is None or (before.heartbeats_version, before.diffs_version) != now:
            self.checked, self._missed = self._after(before, *now)
            self._heartbeats_log.forget(now[0] - COMMITS_KEPT)
            self._diffs_log.forget(now[1])
        return self._missed

    def _before(self, tables: tuple[str, str], now: tuple[int, int]) -> Checked:
        """What the last check left, unless it was of other tables: one may have been lost, and begun again."""
        last = self.checked
        if last is not None and last.tables == tables and (last.heartbeats_version, last.diffs_version) <= now:
            return last
        return Checked(tables)

    def _after(self, before: Checked, heartbeats_version: int, diffs_version: int) -> tuple[Checked, Missed]:
        computed = self._computed_windows(diffs_version)
        changed = computed.keys() & {
            file.partition for file in self._diffs_log.added(before.diffs_version, diffs_version)
        }
        versions, without_manifest = self._versions(changed)
        # For windows that stand as they stood, what came after the last check; for the others, after what they read.
        unread = versions if changed == computed.keys() else {**versions, "": before.heartbeats_version}
        base = min(unread.values(), default=heartbeats_version)
        end_us = max(computed.values(), default=0) + us(self._reach.windowing.length)
        files = [
            file
            for file in self._heartbeats_log.added(base, heartbeats_version)
            if file.oldest is None or to_us(file.oldest) < end_us
        ]
        if files:
            of_each = {start: versions.get(key, before.heartbeats_version) for key, start in computed.items()}
            files = with_later_copies(files, Unread.of(self._reach, of_each))
        arrived = before.arrived
        if files:
            arrived = earliest(pa.concat_tables([arrived, self._arrivals.first_in(files, end_us)]))
        reached, more_without = self._versions((computed.keys() & self._reach.keys_reached_by(arrived)) - changed)
        without_manifest |= more_without | ((before.without_manifest & computed.keys()) - changed)
        arrived, mended, missed = judged(arrived, {**versions, **reached}, self._reach)
        checked = Checked(
            before.tables,
            heartbeats_version,
            diffs_version,
            arrived,
            frozenset(without_manifest),
            before.mended + mended,
        )
        unknown = [StaleWindow(self._reach.windowing.named(key), 0, 0, None) for key in without_manifest]
        return checked, replace(
            missed,
            heartbeats_version=heartbeats_version,
            diffs_version=diffs_version,
            stale=sorted([*missed.stale, *unknown]),
            mended=checked.mended,
        )

    def _computed_windows(self, diffs_version: int) -> Mapping[str, int]:
        """The computed windows' starts by their keys."""
        if diffs_version != self._computed_at:
            known, named = self._computed, self._reach.windowing.named
            self._computed = {
                key: known[key] if key in known else to_us(named(key).start) for key in self._diffs.computed()
            }
            self._computed_at = diffs_version
        return self._computed

    def _versions(self, windows: set[str]) -> tuple[dict[str, int], set[str]]:
        """The version that each of these windows was computed from, and those of which nobody knows any more."""
        found: dict[str, int] = {}
        gone: set[str] = set()
        for key, run in self._diffs.runs(windows).items() if windows else ():
            try:
                found[key] = int(self._diffs.manifest(run)["heartbeats_version"])
            except ObjectMissing:
                gone.add(key)
        return found, gone


@dataclass(frozen=True, slots=True)
class Reach:
    """Which windows an event time matters to: its own, and each whose lookback holds it, both ends included."""

    windowing: Windowing
    lookback: timedelta

    def keys_reached_by(self, arrived: pa.Table) -> set[str]:
        """The keys of the windows that any of these heartbeats matters to."""
        event_us = _us(arrived["event_time"])
        return {self.key(start) for own in self.windows_of(event_us) for start in self.starts(own)}

    def windows_of(self, event_us: Ints) -> list[int]:
        """The starts of the windows that these event times lie in, each once, in order."""
        own: list[int] = np.unique(self.own_starts(event_us)).tolist()
        return own

    def own_starts(self, event_us: Ints) -> Ints:
        """The start of the window that each event time lies in."""
        starts: Ints = event_us - event_us % us(self.windowing.length)
        return starts

    def starts(self, own_us: int) -> Iterator[int]:
        """The starts of the windows that some event time of one window may matter to, that window first."""
        length_us = us(self.windowing.length)
        last_us = own_us + length_us - 1 + us(self.lookback)
        yield from range(own_us, last_us + 1, length_us)

    def key(self, start_us: int) -> str:
        """The window's name."""
        return self.windowing.containing(from_us(start_us)).key


@dataclass(frozen=True, slots=True)
class Unread:
    """Windows by their start, in order, and the version through which nothing is left to be looked at for each."""

    reach: Reach
    starts_us: Ints
    versions: Ints

    @classmethod
    def of(cls, reach: Reach, versions: Mapping[int, int]) -> "Unread":
        """From the version of each window's start."""
        columns = np.array(sorted(versions.items()), dtype=np.int64).reshape(-1, 2)
        return cls(reach, columns[:, 0], columns[:, 1])

    def may_be_in(self, file: AddedFile) -> bool:
        """Whether a file may hold heartbeats that matter to a window and came after its version."""
        first, last = 0, len(self.starts_us)
        if file.oldest is not None:
            first = int(np.searchsorted(self.starts_us, to_us(file.oldest) - us(self.reach.windowing.length), "right"))
        if file.newest is not None:
            cut_us = 1000  # the library may have cut it to the millisecond
            newest_us = to_us(file.newest) + cut_us + us(self.reach.lookback)
            last = int(np.searchsorted(self.starts_us, newest_us, "right"))
        return first < last and int(self.versions[first:last].min()) < file.version


def with_later_copies(files: Sequence[AddedFile], unread: Unread) -> list[AddedFile]:
    """The files that may hold what a window has not read, and those that came after the first of them and may hold
    copies of it: copies share their event time."""
    chosen = [file for file in files if unread.may_be_in(file)]
    first = min((file.version for file in chosen), default=0)
    hours = {file.partition for file in chosen}
    return [file for file in files if file.version >= first and file.partition in hours]


def judged(arrived: pa.Table, versions: Mapping[str, int], reach: Reach) -> tuple[pa.Table, int, Missed]:
    """Which first landings are missed by which windows, given the version that each computed window was read from.

    Returns the landings that any window still lacks, how many are no longer missed since they were judged before, and
    what is missed.
    """
    event_us, landed = _us(arrived["event_time"]), _ints(arrived["version"])
    was_missed = np.asarray(arrived["missed"].combine_chunks().to_numpy(zero_copy_only=False), dtype=bool)
    is_missed, is_lacking = np.zeros_like(was_missed), np.zeros_like(was_missed)
    own_us = reach.own_starts(event_us)
    order = np.argsort(own_us, kind="stable")
    starts, firsts = np.unique(own_us[order], return_index=True)
    of_own: dict[int, int] = {}
    before: dict[int, int] = {}
    for start_us, rows in zip(starts.tolist(), np.split(order, firsts)[1:], strict=True):
        for window_us in reach.starts(start_us):
            version = versions.get(reach.key(window_us))
            if version is None:
                continue
            lacks = (landed[rows] > version) & (event_us[rows] >= window_us - us(reach.lookback))
            count = int(np.count_nonzero(lacks))
            if not count:
                continue
            is_lacking[rows[lacks]] = True
            if window_us == start_us:
                is_missed[rows[lacks]] = True
                of_own[window_us] = count
            else:
                before[window_us] = before.get(window_us, 0) + count
    mended = int(np.count_nonzero(was_missed & ~is_missed))
    stale = [
        StaleWindow(
            reach.windowing.containing(from_us(start_us)),
            of_own.get(start_us, 0),
            before.get(start_us, 0),
            versions[reach.key(start_us)],
        )
        for start_us in sorted(of_own.keys() | before.keys())
    ]
    arrived = arrived.set_column(arrived.column_names.index("missed"), "missed", pa.array(is_missed, pa.bool_()))
    by_stream = pc.value_counts(arrived["stream_id"].filter(pa.array(is_missed)))
    missed = Missed(
        by_window={reach.key(start_us): count for start_us, count in sorted(of_own.items())},
        by_stream={entry["values"]: entry["counts"] for entry in by_stream.to_pylist()},
        stale=stale,
    )
    return arrived.filter(pa.array(is_lacking)), mended, missed


def _us(column: pa.ChunkedArray) -> Ints:
    return _ints(column.cast(pa.int64()))


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.combine_chunks().to_numpy()
    return values
