"""Housekeeping: deletes, archives and rewrites data that accumulates in a lake over months.

Housekeeping consists of chores, which run one after the other. A failed chore does not stop the later ones. A chore may
be killed at any time, and may run concurrently with all other processes.

Rewriting small files as larger ones makes no window stale, because the commit is marked `dataChange: false`. It
disturbs no reader, because the replaced files are kept for VERSIONS_KEPT.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable

from tidemark.pipeline.clock import EPOCH, Clock, SystemClock, format_duration, iso, to_us
from tidemark.pipeline.errors import REFUSALS, LakeError, LakeFull, TableConflict, TidemarkError
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEATS, OWN_TABLES, PARTITIONS, QUARANTINE, Lake
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, DataFile, LakeTable, by_partition, table_errors
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.orphans import GRACE, find_orphans, remove_orphans
from tidemark.pipeline.windows import DAY

TARGET_BYTES, MOST_TARGET_BYTES = 16 << 20, 128 << 20
"""Minimum and maximum target size, in bytes, of the files in a rewritten partition. A file of the minimum size has the
rows of 10,000 streams for a few minutes. So a run that reads one window can skip most files of an hour by their
statistics. The target exceeds the minimum only if a partition would otherwise have more than FILES files."""

FILES = 64
"""Maximum number of files per rewritten partition, unless the files would be larger than MOST_TARGET_BYTES. Few files
keep commits fast, because every commit goes through the list of all files of a table."""

SMALL_BYTES = TARGET_BYTES // 2
MANY = 8
"""Thresholds for rewriting files: those smaller than SMALL_BYTES are rewritten, if a partition has at least MANY."""

SORTED_FILES, SORTED_BYTES = 8, 512 << 20
"""Maximum size in memory of the rows that are sorted together: as a multiple of a new file's target size, and in bytes.
On disk, rows take about a fifth of that."""

COMMIT_ATTEMPTS = 60
"""Maximum number of commit attempts per rewritten partition. An attempt fails if another process commits first."""

LEFT_BYTES = 256 << 20
"""Minimum free disk space that a rewrite leaves. A rewrite that fills the disk fails, but its new files stay until they
count as orphans."""

SPARE = timedelta(days=1)
"""Time for which a table's log keeps the record of a removed file after the file may be deleted. A vacuum finds removed
files only by these records."""


Figures = dict[str, int]
"""The results of a chore as numbers by name. In a dry run, these are the expected results."""


def compact(table: LakeTable, last: str, order: str, *, dry_run: bool = False) -> Iterator[tuple[str, Figures]]:
    """Rewrite the files of a table as fewer, larger files, in each partition up to `last` that has many small files.
    The newest partition comes first, and each partition is a separate commit, so the caller may stop after any
    partition.

    Yields each partition with the number and the bytes of its files before and after the rewrite. With `dry_run`,
    nothing is rewritten, and only the numbers before are yielded.

    Readers see the same rows before and after, and concurrent appends succeed. The rows of the new files are sorted by
    the column `order`, in parts. Raises TableConflict if another process rewrites the same files, and LakeError. An
    error about one partition is raised after the others are done.
    """
    current = table.current()
    if current is None:
        return
    small = by_partition(file for file in table.files(at=current) if file.size < SMALL_BYTES)
    columns = pa.schema(current.schema().to_arrow())
    schema = columns.remove(columns.get_field_index(table.partition_column))

    def rewrite(partition: str) -> Iterator[tuple[str, Figures]]:
        files, size = small[partition], sum(file.size for file in small[partition])
        figures = {"files": len(files), "bytes": size}
        if dry_run:
            yield partition, figures
            return
        if "://" not in table.uri and (problem := why_unwritable(Path(table.uri), size + LEFT_BYTES)):
            raise LakeFull(f"{problem}, too few to rewrite partition {partition} of {table.uri}")
        written = [*_rewritten(table, files, schema, order)]
        _exchange(table, partition, files, written)
        yield partition, {**figures, "files_after": len(written), "bytes_after": sum(file.size for file in written)}

    many = (name for name, files in small.items() if len(files) >= MANY)
    yield from _of_each(sorted((name for name in many if name <= last), reverse=True), rewrite)


def sorted_bytes(target: int) -> int:
    """Return the size in memory of the rows that are sorted together, for new files of this target size."""
    return min(int(SORTED_FILES * target), SORTED_BYTES)


def _rewritten(table: LakeTable, files: Sequence[DataFile], schema: pa.Schema, order: str) -> Iterator[NewFile]:
    """Write the rows of these files of one partition to new, durable files, and yield these. They are of about the
    target size, and their rows are sorted."""
    size, new = sum(file.size for file in files), NewFiles(table, SystemClock())
    target, row_bytes = target_bytes(size), max(1, size // max(1, sum(file.rows for file in files)))
    in_order = sorted(files, key=lambda file: (file.oldest or EPOCH, file.added_at))
    read = (rows for _, rows in read_ahead(lambda file: table.file_rows(file.path, schema), in_order))
    for rows in _parts(read, sorted_bytes(target)):
        rest = rows.sort_by(order)
        while len(rest):
            file = new.write_part(files[0].partition, rest.slice(0, max(1, target // row_bytes)))
            rest, row_bytes = rest.slice(file.rows), max(1, file.size // file.rows)
            yield file


def _parts(tables: Iterable[pa.Table], at_most: int) -> Iterator[pa.Table]:
    held = list[pa.Table]()
    for rows in tables:
        if held and sum(each.nbytes for each in (*held, rows)) > at_most:
            yield pa.concat_tables(held)
            held = []
        held.append(rows)
    yield pa.concat_tables(held)


def _exchange(table: LakeTable, partition: str, files: Sequence[DataFile], written: Sequence[NewFile]) -> None:
    """Replace files of a partition by new ones with the same rows, in one transaction. The Delta library would let two
    rewrites of the same files succeed, and each row would be there twice. Raises TableConflict, LakeError."""
    column, now_us = table.partition_column, to_us(SystemClock().now())
    adds = [file.add_action(column, now_us, data_change=False) for file in written]
    removes = [file.remove_action(column, now_us, data_change=False) for file in files]
    for _ in range(COMMIT_ATTEMPTS):
        current = table.current()
        there = {file.path for file in table.files([partition], current)}
        if current is None or not there.issuperset(file.path for file in files):
            raise TableConflict(f"another process has rewritten partition {partition} of {table.uri} meanwhile")
        with suppress(TableConflict):
            table.transact(current, [*adds, *removes], CommitProperties(max_commit_retries=0))
            return
    raise TableConflict(f"other writers committed to {table.uri} first, {COMMIT_ATTEMPTS} times in a row; try again")


def target_bytes(size: int) -> int:
    """Return the target size in bytes of the files in a rewritten partition. `size` is the number of bytes in the
    partition."""
    return min(max(TARGET_BYTES, size // FILES), MOST_TARGET_BYTES)


def trim(table: LakeTable, keep: timedelta, *, dry_run: bool = False) -> Figures:
    """Delete the files and commits that only belong to old versions of a table, and return the numbers of both. A
    version is old if a later one replaced it more than `keep` ago. `keep` must be in whole hours. Also write a
    checkpoint, so that the table opens quickly. With `dry_run`, only count the files.

    Files that are not committed yet are not deleted. May be killed at any time, and may run concurrently with all other
    processes. Raises LakeError.
    """
    current = table.in_place()
    if current is None:
        return {"files": 0, "commits": 0}

    # Delete only files that a commit has removed, never unlisted files, which may belong to a running run.
    vacuum = partial(current.vacuum, keep // HOUR, enforce_retention_duration=False, full=False)
    with table_errors(table.uri):  # the library also names the files that it has deleted in the last SPARE
        stored = table.folder.get_file_info(pafs.FileSelector("", recursive=True))
        files = len({info.path.lstrip("/") for info in stored}.intersection(vacuum(dry_run=True)))
    if dry_run:
        return {"files": files, "commits": 0}
    before = table.log.versions()
    _keep_commits_for(table, current, keep + SPARE)
    with table_errors(table.uri):
        if files:
            vacuum(dry_run=False)
        current.update_incremental()
        current.create_checkpoint()
        current.cleanup_metadata()
    return {"files": files, "commits": len({*before}.difference(table.log.versions()))}


def drop_partitions(table: LakeTable, before: str, *, dry_run: bool = False) -> Figures:
    """Remove the partitions below the value `before` from a table, and return the number of partitions, rows and bytes.
    Their files stay until `trim` deletes them. With `dry_run`, nothing is removed. Raises TableConflict if another
    process changes these partitions at the same time, and LakeError."""
    current = table.in_place()
    old = [file for file in table.files(at=current) if file.partition < before]
    if old and current is not None and not dry_run:
        with table_errors(table.uri):
            current.delete(f"{table.partition_column} < '{before}'")
        table.make_durable()
    rows, size = sum(file.rows for file in old), sum(file.size for file in old)
    return {"partitions": len({file.partition for file in old}), "rows": rows, "bytes": size}


def _keep_commits_for(table: LakeTable, current: DeltaTable, keep: timedelta) -> None:
    interval = f"interval {keep // HOUR} hours"
    wanted = {"delta.logRetentionDuration": interval, "delta.deletedFileRetentionDuration": interval}
    if not wanted.items() <= current.metadata().configuration.items():
        with table_errors(table.uri):
            current.alter.set_table_properties(wanted)
        table.make_durable()


PACKED_AFTER = timedelta(hours=1)
"""Minimum age of the log entries that are archived. Users mostly look at younger entries."""

SETTLED_AFTER = timedelta(minutes=15)
"""Minimum time by which the watermark must have passed the end of a partition before its files are rewritten. For
quarantine and corrections, the clock must have passed it instead."""

VERSIONS_KEPT = timedelta(days=7)
"""Time for which earlier versions of tables are kept, with the files that compaction or recomputation has replaced. No
reader uses a version for that long, and users can still look at last week's rows."""

COMPACTED_FOR = timedelta(minutes=10)
"""Maximum time for rewriting one table, per run of housekeeping. Without this limit, a table with thousands of
partitions could delay all later chores by a day."""

Done = tuple[str, Figures]
"""The outcome of a chore: a sentence, and figures. If the chore had nothing to do, the figures are empty and the
sentence says why."""


@dataclass(frozen=True, slots=True)
class Chore:
    """The result of a chore. `name` is the chore, and `about` the part of the lake. `says` and `figures` are what was
    done, or what would be done in a dry run.

    `is_idle` is true if there was nothing to do. `failed` says why the chore failed, and `skipped` why it cannot be
    done here.
    """

    name: str
    about: str
    says: str
    figures: Figures = field(default_factory=dict)
    is_idle: bool = False
    failed: str | None = None
    skipped: str | None = None

    @property
    def sentence(self) -> str:
        why = self.skipped if self.failed is None else self.failed
        return f"{self.name}, {self.about}: {self.says if why is None else f'not done: {why}'}"


class Housekeeper:
    """Does the chores of one lake as the settings say. With `dry_run`, it changes nothing, and reports what it would
    do. `has_tables` says that there are custom tables that the settings do not name."""

    def __init__(self, settings: Settings, clock: Clock, *, dry_run: bool = False, has_tables: bool = False) -> None:
        self._settings = settings
        self._has_tables = has_tables or bool(settings.tables)
        self._keep = settings.housekeeping
        self._clock = clock
        self._dry_run = dry_run
        self._lake = Lake(settings.lake, settings.message.kinds, clock)
        self._packing = LogPacking(self._lake.objects())

    def chores(self) -> Iterator[Chore]:
        """Do all chores, and yield each result as soon as it is available. If a chore raises a TidemarkError, its
        result contains the error's text."""
        keep, days = self._keep, self._drop_days
        every: Sequence[tuple[str, str, Callable[[], Iterator[Done]]]] = [
            ("retention", "windows", self._drop_windows),
            ("retention", QUARANTINE, partial(days, QUARANTINE, keep.quarantine, "messages that were rejected")),
            ("retention", CORRECTIONS, partial(days, CORRECTIONS, keep.windows, "changes that were noticed")),
            ("retention", "tracking log", self._drop_log),
            ("packing", "tracking log", self._pack_log),
            ("compaction", HEARTBEATS, partial(self._compact, HEARTBEATS, "event_time")),
            ("compaction", QUARANTINE, partial(self._compact, QUARANTINE, "publish_time")),
            ("compaction", CORRECTIONS, partial(self._compact, CORRECTIONS, "corrected_at")),
            *(("earlier versions", name, partial(self._trim, name)) for name in PARTITIONS),
            ("earlier versions", "tables", self._trim_own),
            ("orphans", "lake", self._remove_orphans),
        ]
        for name, about, do in every:
            try:
                for says, figures in do():
                    yield Chore(name, about, says, figures, is_idle=not figures)
            except TidemarkError as error:
                yield Chore(name, about, "", failed=str(error))

    def _drop_windows(self) -> Iterator[Done]:
        """Remove the heartbeats and the windows that are older than the retention in the settings. Their age is
        measured from their event time to the watermark, so nothing expires during an outage."""
        keep, windowing, lake = self._keep, self._settings.windowing, self._lake
        if keep.heartbeats is None and keep.windows is None:
            yield "all are kept", {}
            return
        until = self._event_time_reached()
        if until is None:
            yield "there is no watermark yet", {}
            return
        # Windows of custom tables last at most a day. By whole days, none of them is removed before its end, and its
        # heartbeats are kept until it has been closed for `keep.heartbeats`.
        by_day, lookback = self._has_tables or lake.own_tables(), self._settings.windows.lookback
        first = None if keep.windows is None else _floor(until - keep.windows, DAY if by_day else windowing.length)
        hour = None if keep.heartbeats is None else _floor(until - keep.heartbeats, HOUR)
        if hour is not None and by_day:
            hour = _floor(_floor(hour, DAY) - lookback, HOUR)
        needed = None if hour is None else _ceiling(hour + lookback, windowing.length)
        since = max(moment for moment in (first, needed) if moment is not None)
        kept, before = lake.kept_windows(windowing, lookback), windowing.number_of(since)
        due = lake.window_index(windowing, lookback).update().due(kept.closed(until))
        waiting = [range(part.start, min(part.stop, before)) for part in due if part.start < before]
        if waiting:
            many = sum(map(len, waiting))
            says = f"nothing is deleted yet, because {many} windows before {iso(since)} are not computed yet"
            yield f"{says}; the first is {windowing.numbered(waiting[-1].start)}", {}
            return
        if not self._dry_run:
            kept.raise_to(windowing.containing(since), hour)
        if hour is not None:
            yield self._dropped(HEARTBEATS, hour.strftime(HOUR_FORMAT), f"of event hours before {iso(hour)}")
        if first is not None:
            before_key, what = windowing.containing(first).key, f"of windows before {iso(first)}"
            yield from _of_each(self._lake.by_window(), lambda name: [self._dropped(name, before_key, what)])

    def _drop_days(self, name: str, keep: timedelta | None, what: str) -> Iterator[Done]:
        if keep is None:
            yield "all are kept", {}
            return
        day = _floor(self._time_reached() - keep, DAY)
        before, what = day.strftime(DAY_FORMAT), f"of {what} before {iso(day)}"
        yield self._dropped(name, before, what)
        kinds = (self._lake.requeued(), self._lake.rejudged()) if name == QUARANTINE else ()
        if notes := sum(kind.forget_before(before, dry_run=self._dry_run) for kind in kinds):
            yield f"deleted {notes} notes about requeues {what}", {"notes": notes}

    def _dropped(self, name: str, before: str, what: str) -> Done:
        did = drop_partitions(self._lake.table(name), before, dry_run=self._dry_run)
        says = f"removed {did['rows']} rows {what} from {name}: {did['partitions']} partitions"
        return _done(did, says, f"no rows of {name} {what}")

    def _drop_log(self) -> Iterator[Done]:
        if self._keep.log is None:
            yield "the whole log is kept, because housekeeping.log is empty", {}
            return
        did = self._packing.drop(self._time_reached() - self._keep.log, self._clock.now(), dry_run=self._dry_run)
        says = f"dropped {did.entries} entries in {did.archives} archives"
        figures = {"entries": did.entries, "archives": did.archives}
        yield _done(figures, says, f"no archive is older than {format_duration(self._keep.log)}")

    def _pack_log(self) -> Iterator[Done]:
        now = self._clock.now()
        did = self._packing.pack(now - PACKED_AFTER, now, dry_run=self._dry_run)
        left = f", and deleted {did.leftovers} leftover objects of archived entries" if did.leftovers else ""
        says = f"moved {did.entries} entries to {did.archives} archives{left}"
        yield _done(asdict(did), says, f"no further entries older than {format_duration(PACKED_AFTER)} can be archived")

    def _compact(self, name: str, order: str) -> Iterator[Done]:
        is_idle, ends_at = True, self._clock.monotonic() + COMPACTED_FOR.total_seconds()
        for partition, did in compact(self._lake.table(name), self._newest_over(name), order, dry_run=self._dry_run):
            is_idle, before = False, f"{did['files']} files ({did['bytes']} bytes)"
            if self._dry_run:
                yield f"partition {partition} has {before}", did
                continue
            after = f"{did['files_after']} ({did['bytes_after']} bytes), in the order of {order}"
            yield f"partition {partition}: {before} became {after}", did
            if self._clock.monotonic() >= ends_at:
                yield f"stopped after {format_duration(COMPACTED_FOR)}: the next run continues", {"stopped": 1}
                break
        if is_idle:
            yield "no finished partition has many small files", {}

    def _newest_over(self, name: str) -> str:
        """Return the newest finished partition of the table `name`. The clock decides whether a partition by day is
        finished; for all others, the watermark decides. Return an empty string if there is no watermark."""
        if name in (QUARANTINE, CORRECTIONS):
            return (self._clock.now() - SETTLED_AFTER - DAY).strftime(DAY_FORMAT)
        until = self._event_time_reached()
        return "" if until is None else (until - SETTLED_AFTER - HOUR).strftime(HOUR_FORMAT)

    def _trim(self, name: str, said_first: str = "") -> Iterator[Done]:
        did = trim(self._lake.table(name), VERSIONS_KEPT, dry_run=self._dry_run)
        ended = f"ended more than {format_duration(VERSIONS_KEPT)} ago"
        says = f"deleted {did['files']} files and {did['commits']} commits of versions that {ended}"
        yield _done(did, f"{said_first}{says}", f"{said_first}no version {ended}")

    def _trim_own(self) -> Iterator[Done]:
        return _of_each(self._lake.own_tables(), lambda name: self._trim(f"{OWN_TABLES}/{name}", f"{name}: "))

    def _remove_orphans(self) -> Iterator[Done]:
        found = find_orphans(self._lake, self._settings.lake, self._clock.now())
        gone = [orphan for orphan in found if not orphan.may_have_landed]
        if not self._dry_run:
            remove_orphans(gone, self._lake.objects())
        figures = {"files": len(gone), "bytes": sum(orphan.size for orphan in gone)}
        left = ""
        if len(gone) < len(found):
            left = f"{len(found) - len(gone)} files may have messages that landed, so `tidemark repair` lists them: "
        says = f"{left}deleted {len(gone)} unreferenced files, {figures['bytes']} bytes"
        yield _done(figures, says, f"{left}no other unreferenced file is older than {format_duration(GRACE)}")

    def _time_reached(self) -> datetime:
        """Return the current time, or the newest reading of tracking if that is earlier. The reading is a time of
        Pub/Sub's clock, and so prevents early deletions if this machine's clock is far ahead."""
        record, now = self._lake.tracking_log().newest().record, self._clock.now()
        tracking = None if record is None else record.decision.tracking
        return now if tracking is None else min(now, tracking.oldest_unacked)

    def _event_time_reached(self) -> datetime | None:
        """Return the watermark, or the current time if that is earlier; None if there is no watermark."""
        watermark = self._lake.tracking_log().newest().watermark
        return None if watermark is None else min(watermark, self._clock.now())


def _of_each(names: Iterable[str], do: Callable[[str], Iterable[Done]]) -> Iterator[Done]:
    """Do a part of a chore for each table or partition. The first error is raised after the other parts are done. An
    error of the lake's storage itself, such as a full disk, is raised immediately."""
    failed: LakeError | None = None
    for name in names:
        try:
            yield from do(name)
        except REFUSALS:
            raise
        except LakeError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _done(figures: Figures, says: str, otherwise: str) -> Done:
    return (says, figures) if any(figures.values()) else (otherwise, {})


def _floor(moment: datetime, width: timedelta) -> datetime:
    return moment - (moment - EPOCH) % width


def _ceiling(moment: datetime, width: timedelta) -> datetime:
    return moment + (EPOCH - moment) % width
