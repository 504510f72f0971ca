"""Finds missed heartbeats, which landed after their window was computed, and stale windows, whose input has grown since
they were computed.

A run's manifest says from which version of `heartbeats` its windows were computed. A heartbeat that first landed with a
later version makes its own window stale, and also each computed window whose lookback contains it. A check reads the
log of `heartbeats` in bounded steps, and updates a checkpoint after each step.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pydantic import ConfigDict, TypeAdapter

from tidemark.pipeline.errors import UNREADABLE, CorruptObject, DamagedNote, ObjectMissing
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.notes import Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.delta_log import commits
from tidemark.pipeline.lake.tables.heartbeats import range_of
from tidemark.pipeline.lake.tables.table import MOMENT, DamagedFile, DataFile, microseconds
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.quality.landings import (
    LANDINGS,
    NONE,
    AffectedWindows,
    MissedHeartbeats,
    StaleWindow,
    TableComparison,
    earliest,
    first_landings,
    ids_of,
    missed_by,
    read_rows,
)
from tidemark.pipeline.windows import Windowing

logger = logging.getLogger(__name__)

CHECKPOINTS = ParquetKind("staleness/", "the tables are checked from the beginning", columns=LANDINGS.names)
"""Storage format of checkpoints: a Parquet file. The file's rows are the checkpoint's `unread`, and the file's metadata
has the other fields as JSON. A checkpoint's key consists of the versions of `heartbeats` and `heartbeat_diffs`."""

CHECKED = "tidemark.checked"
COMMITS_BETWEEN = 200
"""Number of commits after which a checkpoint is written even if its content is the same. A new process reads at most
this many commits again."""


@dataclass(frozen=True, slots=True)
class StalenessCheckpoint:
    """The state of the check: everything that landed up to `heartbeats_version` is checked against the windows computed
    up to `diffs_version`.

    `tables`: Delta's ids of the two tables.
    `unread`: the heartbeats that at least one computed window has not read, as rows of LANDINGS.
    `unknown`: the computed windows whose input version is unknown.
    `mended`: the total of missed heartbeats that have since been read, because their windows were recomputed.
    `damaged`: unreadable files of `heartbeats`, with their event hours.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    tables: tuple[str, str]
    heartbeats_version: int = -1
    diffs_version: int = -1
    unread: pa.Table = field(default_factory=LANDINGS.empty_table)
    unknown: frozenset[str] = frozenset()
    mended: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)


AS_JSON = TypeAdapter(StalenessCheckpoint)


def _newest_checkpoint(notes: Notes[pa.Table]) -> StalenessCheckpoint | None:
    """Return the newest checkpoint in the lake. If there is none, or it is damaged, return None: the check then starts
    over, with the same result except `mended`. Raises NewerFormat and LakeUnreachable."""
    try:
        for key in reversed(notes.listed()):
            if (rows := notes.find(key)) is not None:
                return _checkpoint_of(notes.place(key), rows)
    except DamagedNote as error:
        logger.warning("%s", error)
    return None


def _checkpoint_of(place: str, rows: pa.Table) -> StalenessCheckpoint:
    try:
        checked = orjson.loads((rows.schema.metadata or {}).get(CHECKED.encode(), b""))
        unread = rows.select(LANDINGS.names).cast(LANDINGS).replace_schema_metadata(None)
        return AS_JSON.validate_python({**checked, "unread": unread})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise CHECKPOINTS.broken(place, error) from error


def _is_news(kept: StalenessCheckpoint, new: StalenessCheckpoint) -> bool:
    commits = new.heartbeats_version - kept.heartbeats_version + new.diffs_version - kept.diffs_version
    held = replace(kept, heartbeats_version=new.heartbeats_version, diffs_version=new.diffs_version)
    return commits >= COMMITS_BETWEEN or held != new


COMMITS_AT_ONCE = 1000
"""Maximum number of commits read per step. In a bucket, 1,000 commits take about ten seconds, well within a sensor's
tick."""

FILES_AT_ONCE = 200
"""Maximum number of new files of `heartbeats` opened per step, rounded up to whole commits. In addition, a step opens
earlier files of the same event hours."""

MANIFESTS_AT_ONCE = 500


class Staleness:
    """Checks one lake repeatedly for missed heartbeats and stale windows. Each check reads only the changes since the
    last one. Not thread-safe.

    Assumptions: a heartbeat stays in the table as long as its window does, and copies share stream and event time.

    If commits or files that are still to be read have been deleted, the contents of the tables are compared instead.
    The missed heartbeats are still exact. The stale windows are complete, but may include windows that are not stale.
    An event hour with a damaged file is not counted until the file is restored or removed from the table.
    """

    def __init__(self, lake: Lake, windowing: Windowing) -> None:
        """Prepare a check that continues from the checkpoint in the lake. Raises NewerFormat and LakeUnreachable."""
        self.heartbeats = lake.heartbeats()
        """The open table `heartbeats`, which other checks may share."""
        self._diffs = lake.diffs()
        self._affected = AffectedWindows(windowing)
        self._kept = lake.kept_windows(windowing)
        self._notes = Notes(lake.objects(), CHECKPOINTS)
        self.checkpoint = self._stored = _newest_checkpoint(self._notes)
        self._missed = MissedHeartbeats()
        self._comparison: TableComparison | None = None
        self._runs: tuple[tuple[str, int], Mapping[str, str]] = ("", -1), {}
        self._version_of_run: dict[str, int | None] = {}

    def keep(self) -> None:
        """Write the checkpoint to the lake, for the next process, if its content differs from that of the stored one,
        or if the stored one is at least COMMITS_BETWEEN commits behind. Raises LakeError."""
        checkpoint, stored = self.checkpoint, self._stored
        if checkpoint is None or (stored is not None and not _is_news(stored, checkpoint)):
            return
        earlier = self._notes.listed()
        key = f"{checkpoint.heartbeats_version:012d}-{checkpoint.diffs_version:012d}"
        checked = AS_JSON.dump_json(checkpoint, exclude={"unread"})
        # Another process may have checked the same versions.
        self._notes.ensure(key, checkpoint.unread.replace_schema_metadata({CHECKED: checked}))
        self._notes.delete(*(old for old in earlier if old != key))
        self._stored = checkpoint

    def check(self, goes_on: Callable[[], bool] = lambda: True) -> MissedHeartbeats:
        """Find the missed heartbeats and stale windows, in as many steps as needed. `goes_on` is called between two
        steps. If it returns false, the check stops early, and `left` is above 0. Raises LakeError."""
        missed = self.step()
        while missed.left and goes_on():
            missed = self.step()
        return missed

    def step(self) -> MissedHeartbeats:
        """Run one step of a check. A step reads a bounded amount. If the result's `left` is above 0, the next call
        continues. After a LakeError, the next call retries. Raises LakeError, and InvalidSettings if the computed
        windows do not have the configured length."""
        # `heartbeats` is read first: a window computed in between may have read more than this version, never less.
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
            except UNREADABLE as error:
                logger.info("the tables are compared as a whole, because a commit or file cannot be read: %s", error)
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
        """Return the last checkpoint. Return an empty one instead if there is none, or if the last one belongs to other
        tables, is ahead of the tables, or names as damaged a file that has since been restored or removed."""
        last = self.checkpoint or StalenessCheckpoint(("", ""))
        if last.damaged and last.damaged.keys() - self._still_damaged(heartbeats, last.damaged):
            last = StalenessCheckpoint(("", ""))  # a file was restored or removed: its hour can be checked now
        tables = ids_of(heartbeats, diffs)
        is_ahead = last.heartbeats_version > heartbeats.version() or last.diffs_version > diffs.version()
        return StalenessCheckpoint(tables) if is_ahead or last.tables != tables else last

    def _still_damaged(self, heartbeats: DeltaTable, damaged: Mapping[str, str]) -> set[str]:
        found = set[str]()
        for file in self.heartbeats.files(set(damaged.values()), heartbeats):
            try:
                if file.path in damaged:
                    read_rows(self.heartbeats, file, NONE)
            except (DamagedFile, ObjectMissing):
                found.add(file.path)
        return found

    def _follow(self, before: StalenessCheckpoint, heartbeats: DeltaTable, diffs: DeltaTable) -> MissedHeartbeats:
        """Run one step of a check that reads the log of `heartbeats`. Raises LakeError, and ObjectMissing if a commit
        or a file is gone."""
        earlier, runs = self._runs_before(before), self._runs_of(diffs)
        changed = {key: run for key, run in runs.items() if earlier.get(key) != run}
        versions, unknown, left = self._versions(changed)
        if left:
            return replace(self._missed, left=left)
        # Up to its version, the checkpoint has everything that unchanged windows lack, but nothing about changed ones.
        read = {key: versions.get(key, before.heartbeats_version) for key in runs if key not in unknown}
        unknown |= (before.unknown & runs.keys()) - changed.keys()
        after = min(read.values(), default=heartbeats.version())
        through = min(after + COMMITS_AT_ONCE, heartbeats.version())
        unread, damaged = before.unread, dict[str, str]()
        if through > after:
            end = self._affected.windowing.named(max(runs)).end
            since = commits(self.heartbeats, after, through)
            files = self._unread_files([file for commit in since for file in commit.added], read, end)
            # An unchanged window may have been computed from a version that this check has not reached yet.
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
        reached = self._affected.keys_of(microseconds(unread["event_time"])) & runs.keys()
        versions, of_reached, left = self._versions({key: runs[key] for key in reached})
        checkpoint = replace(
            before,
            heartbeats_version=through,
            diffs_version=diffs.version(),
            unread=unread,
            unknown=frozenset(unknown | of_reached),
            damaged={**before.damaged, **damaged},
        )
        if left:
            self.checkpoint = checkpoint
            return replace(self._missed, left=left)
        return self._judged(checkpoint, versions, heartbeats.version())

    def _unread_files(self, files: list[DataFile], read: Mapping[str, int], end: datetime) -> list[DataFile]:
        """Return the files that may contain heartbeats which a window has not read. Also return later files of the same
        event hours: they may contain copies of these heartbeats. `read` maps each window to the version up to which its
        input is checked. Files without event times before `end` are left out."""
        chosen = [
            file
            for file in files
            if any(read.get(key, file.version) < file.version for key in self._affected.keys_between(*range_of(file)))
        ]
        first, hours = min((file.version for file in chosen), default=0), {file.partition for file in chosen}
        return [file for file in files if file.version >= first and file.partition in hours and range_of(file)[0] < end]

    def _compare(self, comparison: TableComparison, before: StalenessCheckpoint, newest: int) -> MissedHeartbeats:
        versions, unknown, left = self._versions(self._runs_of(comparison.diffs))
        if left := left or comparison.advance(versions):
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
        return self._judged(checkpoint, versions, newest)

    def _judged(self, checkpoint: StalenessCheckpoint, versions: Mapping[str, int], newest: int) -> MissedHeartbeats:
        """Bring `checkpoint` up to date, keep it as `self.checkpoint`, and return its missed heartbeats. `newest` is
        the newest version of `heartbeats`."""
        known, there = self._version_of_run, {*self._runs[1].values()}
        self._version_of_run = {run: known[run] for run in known.keys() & there}  # the others were replaced
        unread, missed = missed_by(checkpoint.unread, versions, self._affected)
        if len(unread) and (kept_from := self._kept.heartbeats_from()) is not None:  # older rows count only now
            unread = unread.filter(pc.field("event_time") >= pa.scalar(kept_from, MOMENT))
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
            left=newest - checkpoint.heartbeats_version,
        )
        return self._missed

    def _runs_before(self, before: StalenessCheckpoint) -> Mapping[str, str]:
        """Return the run of each window in the checkpoint's version of `heartbeat_diffs`. Return an empty mapping if
        this version can no longer be read."""
        if before.diffs_version < 0:
            return {}
        if self._runs[0] == (before.tables[1], before.diffs_version):
            return self._runs[1]
        try:
            return self._runs_of(self._diffs.table.at(before.diffs_version))
        except ObjectMissing as gone:
            logger.info("every window is checked again, because the runs at the last check are unknown: %s", gone)
            return {}

    def _runs_of(self, diffs: DeltaTable) -> Mapping[str, str]:
        version = str(diffs.metadata().id), diffs.version()
        if self._runs[0] != version:
            self._runs = version, self._diffs.runs(at=diffs)
        return self._runs[1]

    def _versions(self, runs: Mapping[str, str]) -> tuple[dict[str, int], set[str], int]:
        """Look up in the runs' manifests from which version of `heartbeats` each window was computed. `runs` maps
        windows to their runs.

        Returns the version of each window, the windows whose version is unknown, and the number of manifests still to
        be read. If this number is above 0, the versions and the windows are empty.
        """
        absent = sorted(set(runs.values()) - self._version_of_run.keys())
        self._version_of_run |= read_ahead(self._input_version, absent[:MANIFESTS_AT_ONCE])
        if len(absent) > MANIFESTS_AT_ONCE:
            return {}, set(), len(absent) - MANIFESTS_AT_ONCE
        known = {key: version for key, run in runs.items() if (version := self._version_of_run[run]) is not None}
        return known, runs.keys() - known.keys(), 0

    def _input_version(self, run: str) -> int | None:
        """Return the version of `heartbeats` that a run read. None if the version is unknown, or if the table lacks it
        because the table was restored from an older copy."""
        version, heartbeats = self._diffs.input_version(run), self.heartbeats.current(as_open=True)
        if version is None or heartbeats is None or version <= heartbeats.version():
            return version
        with suppress(ObjectMissing):
            self.heartbeats.log.read(version)  # committed since the check began
            return version
        return None
