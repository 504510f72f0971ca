"""Missed heartbeats and stale windows: what landed after a window was computed that is in its input.

A run's manifest names the version of `heartbeats` that its windows were computed from. A heartbeat that *first* landed
with a later version was not read: its own window missed it, and each computed window whose lookback reaches it is stale
as well. Copies of earlier heartbeats bring nothing new, and neither does compaction.

A check follows the log of `heartbeats` from its checkpoint on. It opens a file only if the file may hold event times
that some window was computed without. One step of it reads a bounded stretch of commits and moves the checkpoint to the
end of that stretch, so a long check is a sequence of short ones.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from deltalake import DeltaTable

from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.layout import KEPT_BYTES, Lake
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.delta_log import AddedFile, commits
from tidemark.pipeline.lake.tables.heartbeats import range_of
from tidemark.pipeline.lake.tables.table import DamagedFile, listed, microseconds
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.quality.missed.affected import AffectedWindows, MissedHeartbeats, StaleWindow, missed_by
from tidemark.pipeline.quality.missed.checkpoint import CheckpointStore, StalenessCheckpoint
from tidemark.pipeline.quality.missed.comparison import TableComparison, ids_of
from tidemark.pipeline.quality.missed.first_landings import NONE, earliest, files_by_hour, first_landings, read_rows
from tidemark.pipeline.windows import Windowing

logger = logging.getLogger(__name__)

COMMITS_AT_ONCE = 1000
"""Commits that one step reads: on a bucket this takes some ten seconds, well within a sensor's tick."""

FILES_AT_ONCE = 200
"""Files of heartbeats that one step opens, beside what landed earlier in the same event hours."""

MANIFESTS_AT_ONCE = 500
"""Manifests of runs that one step reads."""


class Staleness:
    """Checks one lake again and again; each check reads only what has changed since. One user at a time.

    Assumptions: a heartbeat stays in the table as long as its window does, and copies share stream and event time. If
    commits or files since the checkpoint were removed (without a checkpoint: since the oldest run whose windows stand),
    the contents of the tables are compared instead. Then the missed heartbeats are exact all the same, and a window
    that is not stale may be called stale, never the other way round. What an event hour with a damaged file holds is
    not known, and counts for nothing until the file is put back or taken out.
    """

    def __init__(self, lake: Lake, windowing: Windowing, lookback: timedelta) -> None:
        self.checkpoint: StalenessCheckpoint | None = None
        self.heartbeats = lake.heartbeats(KEPT_BYTES)
        """For others of the same user, who then need not open it as well."""
        self._diffs = lake.diffs()
        self._affected = AffectedWindows(windowing, lookback)
        self._store = CheckpointStore(lake.objects())
        self._missed = MissedHeartbeats()
        self._comparison: TableComparison | None = None
        self._runs: tuple[tuple[str, int], Mapping[str, str]] = ("", -1), {}
        self._version_of_run: dict[str, int | None] = {}

    @classmethod
    def restored(cls, lake: Lake, windowing: Windowing, lookback: timedelta) -> "Staleness":
        """A check that goes on from the checkpoint that the lake keeps. Raises LakeUnreachable."""
        staleness = cls(lake, windowing, lookback)
        staleness.checkpoint = staleness._store.newest()
        return staleness

    def keep(self) -> None:
        """Keep the checkpoint in the lake, for the next process. Raises LakeError."""
        if self.checkpoint is not None:
            self._store.keep(self.checkpoint)

    def check(self, goes_on: Callable[[], bool] = lambda: True) -> MissedHeartbeats:
        """Find what is missed and stale now, or as far as steps come while it `goes_on`. Raises LakeError."""
        missed = self.step()
        while missed.left and goes_on():
            missed = self.step()
        return missed

    def step(self) -> MissedHeartbeats:
        """One bounded step of a check; the next call goes on if anything is `left`. One step is enough for what a few
        minutes bring. Raises LakeError; then the next call tries again. Raises InvalidSettings if the computed windows
        have another length."""
        # In this order: a window that is computed in between may have read more than this version, never less.
        heartbeats, diffs = self.heartbeats.current(), self._diffs.table.current()
        if heartbeats is None or diffs is None:
            self._comparison = None
            return MissedHeartbeats()
        refuse_other_length(self._diffs.table, diffs, self._affected.windowing.length)
        before = self._checkpoint_for(heartbeats, diffs)
        now = heartbeats.version(), diffs.version()
        if self._comparison is not None and self._comparison.tables != before.tables:
            self._comparison = None
        if self._comparison is None:
            if (self._missed.heartbeats_version, self._missed.diffs_version) == now and before is self.checkpoint:
                return self._missed
            try:
                return self._follow(before, heartbeats, diffs)
            except ObjectMissing as gone:
                logger.info("the tables are compared as a whole, because %s", gone)
                self._comparison = TableComparison(self.heartbeats, self._diffs.table, now, self._affected)
        try:
            return self._compare(self._comparison, before, heartbeats.version())
        except CorruptObject:
            compared = self._comparison.heartbeats.version(), self._comparison.diffs.version()
            self._comparison = None
            if compared == now:
                raise
            return self.step()  # a file of the compared versions was replaced and removed meanwhile

    def _checkpoint_for(self, heartbeats: DeltaTable, diffs: DeltaTable) -> StalenessCheckpoint:
        """The last checkpoint, unless it is of other tables: one may have been lost and begun again."""
        last = self.checkpoint or StalenessCheckpoint(("", ""))
        if last.damaged and last.damaged.keys() - self._still_damaged(heartbeats, last.damaged):
            last = StalenessCheckpoint(("", ""))  # a file was put back or taken out: what it holds is known now
        tables = ids_of(heartbeats, diffs)
        is_ahead = last.heartbeats_version > heartbeats.version() or last.diffs_version > diffs.version()
        return StalenessCheckpoint(tables) if is_ahead or last.tables != tables else last

    def _still_damaged(self, heartbeats: DeltaTable, damaged: Mapping[str, str]) -> set[str]:
        """Select the damaged files, given with their event hours, that the table still lists and that are
        unreadable."""
        found = set[str]()
        for file in chain.from_iterable(files_by_hour(heartbeats, listed(heartbeats), damaged.values()).values()):
            try:
                if file.path in damaged:
                    read_rows(self.heartbeats, file, NONE)
            except (DamagedFile, FileNotFoundError):
                found.add(file.path)
        return found

    def _follow(self, before: StalenessCheckpoint, heartbeats: DeltaTable, diffs: DeltaTable) -> MissedHeartbeats:
        """One step along the log. Raises ObjectMissing if the log or the files do not go back far enough."""
        earlier, runs = self._runs_before(before), self._runs_of(diffs)
        changed = {key: run for key, run in runs.items() if earlier.get(key) != run}
        versions, unknown, left = self._versions(changed)
        if left:
            return replace(self._missed, left=left)
        # All that a window which stands as before lacks up to the checkpoint is known; of the others, nothing is.
        read = {key: versions.get(key, before.heartbeats_version) for key in runs if key not in unknown}
        unknown |= (before.unknown & runs.keys()) - changed.keys()
        after = min(read.values(), default=heartbeats.version())
        through = min(after + COMMITS_AT_ONCE, heartbeats.version())
        unread, damaged = before.unread, dict[str, str]()
        if through > after:
            end = self._affected.windowing.named(max(runs)).end
            since = commits(self.heartbeats, after, through)
            files = self._unread_files([file for commit in since for file in commit.added], read, end)
            # A window that stands as before may have been computed from a version that this check has yet to reach.
            touched = {key for file in files for key in self._affected.keys_between(*range_of(file))} & read.keys()
            versions, _, left = self._versions({key: runs[key] for key in touched})
            if left:
                return replace(self._missed, left=left)
            read |= {key: max(read[key], version) for key, version in versions.items()}
            files = self._unread_files(files, read, end)
            if len(files) > FILES_AT_ONCE:
                through = files[FILES_AT_ONCE - 1].version
                files = [file for file in files if file.version <= through]
            if files:
                new, damaged = first_landings(self.heartbeats, files, end, heartbeats, since)
                unread = earliest([unread, new])
        checkpoint = replace(
            before,
            heartbeats_version=through,
            diffs_version=diffs.version(),
            unread=unread,
            unknown=frozenset(unknown),
            damaged={**before.damaged, **damaged},
        )
        reached = self._affected.keys_of(microseconds(unread["event_time"])) & runs.keys()
        versions, unknown, left = self._versions({key: runs[key] for key in reached})
        checkpoint = replace(checkpoint, unknown=checkpoint.unknown | unknown)
        if left:
            self.checkpoint = checkpoint
            return replace(self._missed, left=left)
        return self._judged(checkpoint, versions, heartbeats.version())

    def _unread_files(self, files: list[AddedFile], read: Mapping[str, int], end: datetime) -> list[AddedFile]:
        """The files that may hold heartbeats which a window has not read, and the later files that may hold copies of
        these, which share their event hour. `read` has the version through which each window's input is checked."""
        chosen = [
            file
            for file in files
            if any(read.get(key, file.version) < file.version for key in self._affected.keys_between(*range_of(file)))
        ]
        first, hours = min((file.version for file in chosen), default=0), {file.partition for file in chosen}
        return [file for file in files if file.version >= first and file.partition in hours and range_of(file)[0] < end]

    def _compare(
        self, comparison: TableComparison, before: StalenessCheckpoint, heartbeats_version: int
    ) -> MissedHeartbeats:
        """One step of a comparison of the tables' contents."""
        versions, unknown, left = self._versions(self._runs_of(comparison.diffs))
        left = left or comparison.advance(versions)
        if left:
            return replace(self._missed, left=left)
        self._comparison = None
        checkpoint = replace(
            before,
            heartbeats_version=comparison.heartbeats.version(),
            diffs_version=comparison.diffs.version(),
            unread=comparison.lacking,
            unknown=frozenset(unknown | comparison.unknown),
            damaged=comparison.damaged,
        )
        return self._judged(checkpoint, versions, heartbeats_version)

    def _judged(
        self, checkpoint: StalenessCheckpoint, versions: Mapping[str, int], heartbeats_version: int
    ) -> MissedHeartbeats:
        """Judge what is unread, and move the checkpoint there."""
        unread, missed = missed_by(checkpoint.unread, versions, self._affected)
        self.checkpoint = replace(checkpoint, unread=unread, mended=checkpoint.mended + missed.mended)
        stale = {found.window.key: found for found in missed.stale}
        for key in checkpoint.unknown:
            found = stale.get(key, StaleWindow(self._affected.windowing.named(key), 0, 0, None))
            stale[key] = replace(found, computed_from=None)
        self._missed = replace(
            missed,
            heartbeats_version=checkpoint.heartbeats_version,
            diffs_version=checkpoint.diffs_version,
            stale=sorted(stale.values()),
            mended=self.checkpoint.mended,
            damaged=checkpoint.damaged,
            left=heartbeats_version - checkpoint.heartbeats_version,
        )
        return self._missed

    def _runs_before(self, before: StalenessCheckpoint) -> Mapping[str, str]:
        """The run that each window stood from at the checkpoint; nothing if that version cannot be read any more."""
        if before.diffs_version < 0:
            return {}
        if self._runs[0] == (before.tables[1], before.diffs_version):
            return self._runs[1]
        try:
            return self._runs_of(self._diffs.table.at(before.diffs_version))
        except ObjectMissing as gone:
            logger.info("every window is checked anew, because its run at the last check is not known: %s", gone)
            return {}

    def _runs_of(self, diffs: DeltaTable) -> Mapping[str, str]:
        """The run that each computed window stands from in a version of the diffs."""
        version = str(diffs.metadata().id), diffs.version()
        if self._runs[0] != version:
            self._runs = version, self._diffs.runs(at=diffs)
        return self._runs[1]

    def _versions(self, runs: Mapping[str, str]) -> tuple[dict[str, int], set[str], int]:
        """The version that each of these windows was computed from, given its run; the windows of which it is unknown
        any more; and how many manifests are left to be read before that can be said."""
        absent = sorted(set(runs.values()) - self._version_of_run.keys())
        self._version_of_run |= read_ahead(self._diffs.input_version, absent[:MANIFESTS_AT_ONCE])
        if len(absent) > MANIFESTS_AT_ONCE:
            return {}, set(), len(absent) - MANIFESTS_AT_ONCE
        known = {key: version for key, run in runs.items() if (version := self._version_of_run[run]) is not None}
        return known, runs.keys() - known.keys(), 0
