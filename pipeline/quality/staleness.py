"""Missed heartbeats: what landed after its window was computed, and the windows that are stale by it.

A window was computed from one version of `heartbeats`, which its run's manifest names. A heartbeat that *first* landed
with a later version was not read: its own window missed it, and every computed window whose lookback reaches it is
stale as well. Copies of what had landed before (same stream, event time, and publisher's id or else message id) bring
nothing new, nor does compaction, whose commits say so.

What is looked at are the two tables' own logs, from where the last check stopped. A file of new heartbeats is opened
only if it may hold event times that a window was computed without.
"""

import logging
from collections.abc import Generator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.clock import duration_us, to_us
from pipeline.errors import CorruptObject, ObjectMissing
from pipeline.lake.layout import HEARTBEATS, Lake
from pipeline.lake.tables.delta_log import READERS, DeltaLog
from pipeline.lake.tables.diffs import HeartbeatDiffs
from pipeline.lake.tables.table import LakeTable
from pipeline.quality.arrivals import Arrivals, earliest
from pipeline.quality.checked import Checked
from pipeline.quality.comparison import compared
from pipeline.quality.missed import Missed, Reach, StaleWindow, Unread, judged, with_later_copies
from pipeline.windows import Windowing

logger = logging.getLogger(__name__)

MANIFESTS_AT_ONCE = 500
"""Of runs, read before a long check says how many are left."""

Look: TypeAlias = Generator[int, None, tuple[Checked, Missed]]
"""A check that says now and then how much is left of what it is reading, and ends with what it found."""

COMMITS_KEPT = 2000
"""Of the newest versions, what they added is remembered: a run that has read one of them may still commit."""


class Staleness:
    """Checks one lake, again and again; each check looks only at what has changed since. One user at a time.

    Assumptions: a heartbeat stays in the table as long as its window does, and copies share stream and event time.
    Compaction disturbs nothing. If the log's commits or files since the last check (the first time: since the oldest
    run whose windows stand) have been removed, the tables' contents are compared instead: what is missed is exact all
    the same, and a window may be called stale that is not, never the other way round.
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
        self._under_way: tuple[tuple[str, str], tuple[int, int], Look] | None = None
        self._computed: Mapping[str, int] = {}
        self._computed_at = (0, -1)

    @classmethod
    def of(cls, lake: Lake, windowing: Windowing, lookback: timedelta, checked: Checked | None = None) -> "Staleness":
        """The check of a lake, going on from what an earlier one left."""
        return cls(lake.table(HEARTBEATS), lake.diffs(), windowing, lookback, checked)

    def check(self) -> Missed:
        """What is missed and stale now. Raises LakeError."""
        missed = self.step()
        while self._under_way is not None:
            missed = self.step()
        return missed

    def step(self) -> Missed:
        """The same for who has little time: one stretch of a long check, which the next call goes on with. A check of
        what a few minutes bring is done in one. Raises LakeError; the next call begins the check again, and has what
        was read of the tables' logs by then."""
        # In this order: a window that is computed in between may have read more than this version, never less.
        heartbeats, diffs = self._heartbeats.current(), self._diffs.table.current()
        if heartbeats is None or diffs is None:
            self._under_way = None
            return Missed()
        tables, now = (str(heartbeats.metadata().id), str(diffs.metadata().id)), (heartbeats.version(), diffs.version())
        before = self._before(tables, now)
        if self._under_way is None or self._under_way[0] != tables:
            if self._missed is not None and (before.heartbeats_version, before.diffs_version) == now:
                return self._missed
            self._under_way = tables, now, self._look(before, *now)
        _, as_of, look = self._under_way
        try:
            left = next(look)
        except StopIteration as end:
            self.checked, self._missed = end.value
        except CorruptObject:
            self._under_way = None
            if as_of == now:
                raise
            return self.step()  # what it was reading was replaced and removed meanwhile
        except BaseException:
            self._under_way = None
            raise
        else:
            return replace(self._missed or Missed(), left=left)
        self._under_way = None
        return self._missed

    def _look(self, before: Checked, heartbeats_version: int, diffs_version: int) -> Look:
        """A check as of these versions."""
        try:
            found = yield from self._after(before, heartbeats_version, diffs_version)
        except ObjectMissing as gone:
            logger.info("the tables are compared as a whole, because %s", gone)
            found = yield from self._compared(before, heartbeats_version, diffs_version)
        self._heartbeats_log.forget(heartbeats_version - COMMITS_KEPT)
        self._diffs_log.forget(diffs_version)
        return found

    def _before(self, tables: tuple[str, str], now: tuple[int, int]) -> Checked:
        """What the last check left, unless it was of other tables: one may have been lost, and begun again."""
        last = self.checked
        if last is not None and last.tables == tables and (last.heartbeats_version, last.diffs_version) <= now:
            return last
        return Checked(tables)

    def _after(self, before: Checked, heartbeats_version: int, diffs_version: int) -> Look:
        computed = self._computed_windows(diffs_version)
        yield from self._diffs_log.read(before.diffs_version, diffs_version)
        changed = computed.keys() & {
            file.partition for file in self._diffs_log.added(before.diffs_version, diffs_version)
        }
        versions, unknown = yield from self._versions(changed)
        # For windows that stand as they stood, what came after the last check; for the others, after what they read.
        unread = versions if changed == computed.keys() else {**versions, "": before.heartbeats_version}
        base = min(unread.values(), default=heartbeats_version)
        end_us = max(computed.values(), default=0) + duration_us(self._reach.windowing.length)
        yield from self._heartbeats_log.read(base, heartbeats_version)
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
            first = yield from self._arrivals.first_in(files, end_us)
            arrived = earliest(pa.concat_tables([arrived, first]))
        reached, without_manifest = yield from self._versions(
            (computed.keys() & self._reach.keys_reached_by(arrived)) - changed
        )
        unknown |= without_manifest | ((before.unknown & computed.keys()) - changed)
        now = replace(before, heartbeats_version=heartbeats_version, diffs_version=diffs_version, arrived=arrived)
        return self._judged(now, {**versions, **reached}, unknown)

    def _compared(self, before: Checked, heartbeats_version: int, diffs_version: int) -> Look:
        """The same from the tables' contents. A window is unknown if one in its lookback has read more than it has, or
        stands from nobody knows what, or is not computed: what has landed there may have landed in between."""
        computed = self._computed_windows(diffs_version)
        diffs = self._diffs.table.at(diffs_version)
        versions, unknown = yield from self._versions(computed.keys(), diffs)
        found = yield from compared(
            self._heartbeats.at(heartbeats_version),
            diffs,
            {key: computed[key] for key in versions},
            self._reach,
        )
        unknown |= found.untold
        for key, version in versions.items():
            for later in map(self._reach.key, self._reach.starts(computed[key])):
                if versions.get(later, version) < version:
                    unknown.add(later)
        now = replace(before, heartbeats_version=heartbeats_version, diffs_version=diffs_version, arrived=found.lacking)
        return self._judged(now, versions, unknown)

    def _judged(self, now: Checked, versions: Mapping[str, int], unknown: set[str]) -> tuple[Checked, Missed]:
        arrived, mended, missed = judged(now.arrived, versions, self._reach)
        now = replace(now, arrived=arrived, unknown=frozenset(unknown), mended=now.mended + mended)
        stale = {found.window.key: found for found in missed.stale}
        for key in unknown:
            stale[key] = replace(
                stale.get(key, StaleWindow(self._reach.windowing.named(key), 0, 0, None)), computed_from=None
            )
        return now, replace(
            missed,
            heartbeats_version=now.heartbeats_version,
            diffs_version=now.diffs_version,
            stale=sorted(stale.values()),
            mended=now.mended,
        )

    def _computed_windows(self, diffs_version: int) -> Mapping[str, int]:
        """The computed windows' starts by their keys."""
        at = (self._diffs.table.opened, diffs_version)
        if at != self._computed_at:
            known, named = self._computed, self._reach.windowing.named
            self._computed = {
                key: known[key] if key in known else to_us(named(key).start) for key in self._diffs.computed()
            }
            self._computed_at = at
        return self._computed

    def _versions(
        self, windows: Set[str], at: DeltaTable | None = None
    ) -> Generator[int, None, tuple[dict[str, int], set[str]]]:
        """The version that each of these windows was computed from, and those of which nobody knows any more."""
        runs = self._diffs.runs(windows, at) if windows else {}
        names, version_of = sorted(set(runs.values())), dict[str, int | None]()
        for first in range(0, len(names), MANIFESTS_AT_ONCE):
            if first:
                yield len(names) - first
            some = names[first : first + MANIFESTS_AT_ONCE]
            with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
                version_of |= zip(some, pool.map(self._version_of, some), strict=True)
        known = {key: version for key, run in runs.items() if (version := version_of[run]) is not None}
        return known, runs.keys() - known.keys()

    def _version_of(self, run: str) -> int | None:
        try:
            return int(self._diffs.manifest(run)["heartbeats_version"])
        except (ObjectMissing, CorruptObject):
            return None
