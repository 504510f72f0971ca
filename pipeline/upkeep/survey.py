"""Surveys a lake before a repair, and replaces lost log entries. A survey checks the windows and the tracking log,
finds orphans, and changes nothing.

A broken window is *missing* (closed, but not computed), *stale* (heartbeats landed after it was computed) or *damaged*
(one of its files, or the manifest of its run, is gone or unreadable). In all three cases the repair is to compute the
window again, which needs its heartbeats to be readable.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, iso
from tidemark.pipeline.errors import REFUSALS, CorruptObject, LakeError, LakeUnreachable, NewerFormat, ObjectMissing
from tidemark.pipeline.figures import counted, newest_of
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEATS, OWN_TABLES, QUARANTINE, STREAM_STATUS, Lake, OpenLake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.table import (
    DataFile,
    LakeTable,
    as_data_files,
    by_partition,
    first_day,
    table_errors,
)
from tidemark.pipeline.lake.tables.windowed import WindowedTable, run_of
from tidemark.pipeline.quality.due_windows import further_back
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.orphans import GRACE, Orphan, find_orphans
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Entry, Lost
from tidemark.pipeline.windows import KEY_FORMAT, Window, Windowing, runs_of_neighbours, start_of

Track = Callable[..., Iterable[Any]]
"""A function that yields the items of its first argument, and may show the progress. `total` is the number of items,
and `description` says what is checked, such as "orphans". `rich.progress.Progress.track` is such a function."""


def untracked(items: Iterable[Any], **_: object) -> Iterable[Any]:
    """Return the items, without showing the progress."""
    return items


class Fault(StrEnum):
    """The fault of a window. If several values apply, the first one in this order is used."""

    DAMAGED = "damaged"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Broken:
    """A window that has to be computed again. `reasons` says why. `blocked_by` lists what prevents the computation
    now; it is empty if nothing does."""

    window: Window
    fault: Fault
    reasons: Sequence[str]
    blocked_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DamagedInput:
    """A missing or unreadable file of `heartbeats`, `quarantine` or `corrections`, or of a custom table's window that
    no run can compute again. `windows` are the surveyed windows that are computed from this file."""

    file: str
    why: str
    windows: Sequence[Window]


@dataclass(frozen=True, slots=True)
class DamagedOwn:
    table: str
    window: str
    why: str


@dataclass(frozen=True, slots=True, order=True)
class LostEntry:
    """The number of a lost entry of the tracking log, and why the entry counts as lost."""

    entry: int
    why: str


@dataclass(frozen=True, slots=True)
class LogHealth:
    """The result of `check_log`. `damaged` lists the damaged or missing entries. `forgotten` lists those that an
    operator has declared lost, and the first entry that is missing from the archives, if any. `lost_end` has a message
    if entries are missing at the end of the log."""

    entries_read: int = 0
    damaged: Sequence[LostEntry] = ()
    forgotten: Sequence[LostEntry] = ()
    lost_end: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        return not self.damaged and not self.lost_end


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a survey of the windows in `[start, end)`, and of the rest of the lake. `windows` and `files` are
    the numbers of checked windows and of their files.

    `inputs` are the damaged files that no run can write again, and `own` the damaged windows of custom tables that a
    run can compute again. `unknown` contains a sentence for each question that could not be answered. `watermark` is
    the watermark of the lake.
    """

    start: datetime
    end: datetime
    windows: int
    files: int
    broken: Sequence[Broken]
    inputs: Sequence[DamagedInput]
    unknown: Sequence[str]
    own: Sequence[DamagedOwn]
    log: LogHealth = LogHealth()
    orphans: Sequence[Orphan] = ()
    watermark: datetime | None = None

    @property
    def repairable(self) -> list[list[Window]]:
        """The broken windows that can be computed again now, grouped into contiguous ranges."""
        return runs_of_neighbours(broken.window for broken in self.broken if not broken.blocked_by)

    @property
    def blocked(self) -> list[Broken]:
        return [broken for broken in self.broken if broken.blocked_by]

    @property
    def is_sound(self) -> bool:
        return not (self.needs_a_hand or self.broken or self.own or self.orphans)

    @property
    def needs_a_hand(self) -> bool:
        """True if a person has to act, because computing windows and deleting orphans do not repair everything."""
        return bool(self.inputs or self.blocked or self.unknown) or not self.log.is_whole

    def runs(self, most: int) -> Iterator[Sequence[Window]]:
        """Yield the windows of each run that is needed to compute the broken windows again. A run has a contiguous
        range of at most `most` windows."""
        for stretch in self.repairable:
            for number in range(0, len(stretch), most):
                yield stretch[number : number + most]


def check_windows(
    surveyor: "Surveyor", start: datetime, end: datetime, *, whole: bool, watermark: datetime | None, track: Track
) -> Survey:
    """Survey the windows that are completely in `[start, end)`, and the windows of custom tables that start before
    `end`, on the day of `start` or later. `whole` is as in `Surveyor.look`. `watermark` determines which windows are
    closed. `track` shows the progress.

    Each file of a window must exist, have a readable footer, and have the size and the number of rows that the table's
    log states. The values in the file are not read. Raises LakeError if the log of a table cannot be read, or if the
    lake is unreachable.
    """
    lake, windowing = surveyor.lake, surveyor.settings.windowing
    diffs, first, last = lake.diffs(), start.strftime(KEY_FORMAT), end.strftime(KEY_FORMAT)
    files = {table: _files_of(table, first, last) for table in (diffs.table, lake.table(STREAM_STATUS))}
    # Not all windows of the range, which may span centuries: other windows are broken only if they are due or stale.
    windows = {file.partition: windowing.containing(start_of(file.partition)) for file in chain(*files.values())}
    reasons, read = _damaged(diffs, files, track)
    faults = dict.fromkeys(reasons, Fault.DAMAGED)

    def blame(window: Window, fault: Fault, why: str) -> None:
        if start <= window.start and window.end <= end:
            windows[window.key] = window
            faults.setdefault(window.key, fault)
            reasons[window.key].append(why)

    kept = lake.kept_windows(windowing)
    closed, since = kept.closed(watermark), kept.since()
    for stretch in lake.window_index(windowing).update().due(closed):
        for window in map(windowing.numbered, stretch):
            blame(window, Fault.MISSING, "it is closed but not computed")
    for key in lake.stream_status().behind(diffs, windows):
        if since is None or windows[key].start >= since:  # no run can write it for an earlier window
            blame(windows[key], Fault.STALE, "its stream_status is missing, or older than its heartbeat_diffs")
    unknown = []
    try:
        staleness, about = Staleness(lake, windowing), "what landed since windows were computed"
        for check in track([staleness.check], total=1, description=about):
            for stale in check().stale:
                blame(stale.window, Fault.STALE, stale.why)
    except (LakeUnreachable, NewerFormat):
        raise
    except (LakeError, pa.ArrowException) as error:
        unknown.append(f"which windows are stale cannot be determined until the rest is repaired: {error}")
    needed, landed = dict[DataFile, list[Window]](), lake.table(HEARTBEATS)
    if (opened := landed.current()) is None and any(files.values()):
        unknown.append(f"{landed.uri} has no log, although windows were computed from it: restore a backup of it")
    elif opened is not None and opened.version() < read:
        unknown.append(
            f"{landed.uri} is at version {opened.version()}, but windows were computed from version {read}: the newest "
            "commits of its log are gone. Restore a backup of the log, and until then remove no orphans"
        )
    for file in landed.files(at=opened):
        # Only windows near the file's event times, because a long range may have a million windows and many files.
        near = windowing.between(
            start if file.oldest is None else max(start, max(start, file.oldest) - windowing.length),
            end if file.newest is None else min(end, min(file.newest, end) + windowing.lookback + windowing.length),
        )
        if reached := [each for each in near if file.may_have(each.start - windowing.lookback, each.end)]:
            needed[file] = reached
    inputs = list[DamagedInput]()
    for name in (HEARTBEATS, QUARANTINE, CORRECTIONS):
        table = lake.table(name)
        try:
            by_day = (file for file in table.files() if whole or file.partition >= first_day(start))
            for file, why in _looked_at(table, list(needed if name == HEARTBEATS else by_day), track):
                inputs.append(DamagedInput(f"{table.uri}/{file.path}", why, needed.get(file, ())))
        except CorruptObject as error:
            unknown.append(str(error))
    try:
        lake.streams().current()
    except CorruptObject as error:
        unknown.append(str(error))
    broken = [
        Broken(windows[key], faults[key], reasons[key], _blocks(windows[key], inputs, watermark, since))
        for key in sorted(faults)
    ]
    # A custom table's window lasts at most a day, so the one that contains `start` begins at most a day earlier.
    own = list[DamagedOwn]()
    for name in lake.own_tables():
        table, its_lookback = lake.table(f"{OWN_TABLES}/{name}"), surveyor.lookbacks.get(name)
        because, due_from = f": [tables] has no usable table {name}", None
        if its_lookback is not None:
            further = further_back(its_lookback, windowing.lookback)
            because, due_from = "", max(windowing.first, (since or EPOCH) + further)
        try:
            for file, why in _looked_at(table, _files_of(table, first_day(start), last, is_own=True), track):
                path = f"{table.uri}/{file.path}"
                if due_from is not None and start_of(file.partition) >= due_from:
                    own.append(DamagedOwn(name, file.partition, f"{path}: {why}"))
                else:
                    inputs.append(DamagedInput(path, f"{why}, and its window cannot be computed again{because}", ()))
        except CorruptObject as error:  # the other tables can be repaired
            unknown.append(str(error))
    count = (end - start) // windowing.length
    return Survey(start, end, count, sum(map(len, files.values())), broken, inputs, unknown, own)


def forget_damaged(lake: Lake, damaged: Iterable[DamagedOwn]) -> None:
    """Remove damaged windows from custom tables. The tables' sensor then requests runs that compute the windows again.
    Raises LakeError."""
    by_table = defaultdict[str, set[str]](set)
    for one in damaged:
        by_table[one.table].add(one.window)
    for name, keys in by_table.items():
        lake.own_table(name).forget(keys)


def _files_of(table: LakeTable, first: str, last: str, *, is_own: bool = False) -> list[DataFile]:
    """Return the files of the partitions in `[first, last)`. Raises CorruptObject if the table's log is damaged."""
    key = pc.field(f"partition.{table.partition_column}")
    of_range = table.listed(_opened(table, is_own=is_own)).filter((key >= first) & (key < last))
    return as_data_files(of_range, table.partition_column)


def _opened(table: LakeTable, *, is_own: bool = False) -> DeltaTable | None:
    try:
        return table.current()
    except CorruptObject as error:
        then = "away and run the repair: it recomputes all windows whose heartbeats are kept"
        if is_own:
            then = "away: if [tables] names it, all windows whose heartbeats are kept are then recomputed"
        raise CorruptObject(f"{error}. Without a backup, move {table.uri} {then}") from error


def _damaged(
    diffs: WindowedTable, files: Mapping[LakeTable, Sequence[DataFile]], track: Track
) -> tuple[defaultdict[str, list[str]], int]:
    """Return what is wrong with each window, and the newest version of `heartbeats` that a run of these files has read;
    -1 if no such version is known."""
    found, computed_by, read = defaultdict[str, list[str]](list), defaultdict[str, set[str]](set), -1
    for table, of_table in files.items():
        for file, why in _looked_at(table, of_table, track):
            found[file.partition].append(f"{table.uri}/{file.path}: {why}")
        for key, files_of_window in by_partition(of_table).items():
            runs = {run_of(file.path) for file in files_of_window}
            for run in runs:
                computed_by[run].add(key)
            if len(runs) > 1:
                found[key].append(f"it has rows of several runs: {', '.join(sorted(runs))}")
    for run in sorted(computed_by):
        try:
            read = max(read, diffs.manifest(run).heartbeats_version)
        except (ObjectMissing, CorruptObject) as error:
            state = "is gone" if isinstance(error, ObjectMissing) else "cannot be read"
            for key in computed_by[run]:
                found[key].append(f"the manifest of its run {run} {state}, so the window's input is not known")
    return found, read


def _blocks(
    window: Window, inputs: Iterable[DamagedInput], watermark: datetime | None, since: datetime | None
) -> list[str]:
    blocks = [f"{damaged.file} is damaged" for damaged in inputs if window in damaged.windows]
    if since is not None and window.start < since:
        blocks.append("housekeeping has deleted heartbeats that it needs. Restore a copy of the window's file")
    if not window.is_closed_at(watermark):
        where = "is not known" if watermark is None else f"is at {iso(watermark)}"
        blocks.append(f"the watermark {where}, and a run computes only closed windows")
    return blocks


def _looked_at(table: LakeTable, files: Sequence[DataFile], track: Track) -> Iterator[tuple[DataFile, str]]:
    if files:
        looked, about = read_ahead(partial(_damage_of, table.folder), files), f"files of {table.uri.rpartition('/')[2]}"
        for file, why in track(looked, total=len(files), description=about):
            if why is not None:
                yield file, why


def _damage_of(place: pafs.FileSystem, file: DataFile) -> str | None:
    try:
        with table_errors(file.path):
            info = place.get_file_info(file.path)
            if info.type != pafs.FileType.File:
                return "it is gone"
            if info.size != file.size:
                return f"it has {info.size} bytes, but should have {file.size} according to the table"
            with place.open_input_file(file.path) as content:
                rows = pq.read_metadata(content).num_rows
            return None if rows == file.rows else f"it has {counted(rows, 'row')}, but should have {file.rows:,}"
    except REFUSALS:
        raise
    except (LakeError, pa.ArrowException) as error:
        text = str(error.__cause__ or error).splitlines()
        return f"it cannot be read: {text[0][:200] if text else type(error).__name__}"


@dataclass(frozen=True, slots=True)
class Flaw:
    """One finding of a survey. `kind` is one word, such as "stale", and `text` a sentence. `is_grave` is true if the
    repair command cannot fix it."""

    kind: str
    text: str
    is_grave: bool = False


def findings(survey: Survey, now: datetime) -> Iterator[Flaw]:
    """Yield all findings of a survey. `now` is used for the age of orphans."""
    for broken in survey.broken:
        for reason in broken.reasons:
            yield Flaw(str(broken.fault), f"{broken.window.key}: {reason}")
        for block in broken.blocked_by:
            yield Flaw(str(broken.fault), f"{broken.window.key}: it cannot be computed now: {block}", True)
    for damaged in survey.inputs:
        effect = "Its rows cannot be read"
        if damaged.windows:
            first, last = damaged.windows[0].key, damaged.windows[-1].key
            made = f"Window {first} depends" if first == last else f"The windows {first} to {last} depend"
            effect = f"{made} on it and cannot be computed"
        remedy = "restore a backup of the file, or the object's earlier generation"
        yield Flaw("damaged", f"{damaged.file}: {damaged.why}. {effect}: {remedy}", True)
    for own in survey.own:
        yield Flaw("damaged", f"{own.window} of {own.table}: {own.why}")
    for text in survey.unknown:
        yield Flaw("unknown", text, True)
    for lost in survey.log.damaged:
        yield Flaw("log", f"entry {lost.entry}: {lost.why}", True)
    for lost in survey.log.forgotten:
        yield Flaw("log", f"entry {lost.entry} was lost: {lost.why}")
    for text in survey.log.lost_end:
        yield Flaw("log", text, True)
    for orphan in survey.orphans:
        age = format_duration(timedelta(seconds=int((now - orphan.written_at).total_seconds())))
        yield Flaw("orphaned", f"{orphan.location}: {orphan.what} ({orphan.size} bytes, {age} old)")


class Surveyor:
    """Surveys one lake. Changes nothing. `lookbacks` has the lookback of each custom table that runs can compute."""

    def __init__(self, settings: Settings, clock: Clock, lookbacks: Mapping[str, timedelta] | None = None) -> None:
        self.lake = OpenLake(settings.lake, settings.message.kinds, clock)
        self.settings, self.lookbacks = settings, lookbacks or {}
        self._clock = clock
        self._kept = self.lake.kept_windows(settings.windowing)

    def range_of(self, first: Window | None, last: Window | None) -> tuple[datetime, datetime] | None:
        """Return the start of `first` and the end of `last`. The default `first` is the first window that is computed
        or has a landed heartbeat or, if later, the first one whose heartbeats are all kept. The default `last` is the
        last closed window. Return None if a default does not exist. Raises ValueError if `last` is before `first`. With
        a default, raises CorruptObject if a table's log, or the tracking log's end, is damaged or lost."""
        if first is None or last is None:
            log, windowing = self.lake.tracking_log(), self.settings.windowing
            _opened(self.lake.diffs().table)
            index = self.lake.window_index(windowing).update()
            begins = [one for one in (index.held.least, index.computed.least) if one is not None]
            try:
                closed = self._kept.closed(log.newest().watermark)
                if not begins or not (closed := range(max(min(begins), closed.start), closed.stop)):
                    log.catch_up_to_append()
                    return None
            except CorruptObject as error:
                further = "name them with --from and --to, or in the job with first_window and last_window"
                raise CorruptObject(f"{error}. To survey earlier windows, {further}") from error
            first, last = first or windowing.numbered(closed[0]), last or windowing.numbered(closed[-1])
        if last < first:
            raise ValueError(f"the last window, {last.key}, is before the first, {first.key}")
        return first.start, last.end

    def look(
        self, start: datetime, end: datetime, *, whole: bool = False, grace: timedelta = GRACE, track: Track = untracked
    ) -> Survey:
        """Survey the lake. Checks the tracking log from `start` on, the windows in `[start, end)`, and the files of
        `quarantine` and `corrections` (all with `whole`, else from the day of `start` on). Finds all orphans that are
        older than `grace`. Raises LakeError if the log of a table cannot be read, or if the lake is unreachable."""
        lake, watermark, now = self.lake, None, self._clock.now()
        with suppress(CorruptObject):  # `check_log` says what is damaged
            watermark = lake.tracking_log().newest().watermark
        # Windows that end in the future cannot be computed yet, because Dagster has no partition for them.
        closed_at = None if watermark is None else min(watermark, now)
        of_windows = check_windows(self, start, end, whole=whole, watermark=closed_at, track=track)
        log = check_log(lake.tracking_log(), start, track)
        for place in track([self.settings.lake], total=1, description="orphans"):
            orphans = find_orphans(lake, place, now, grace)
        return replace(of_windows, log=log, orphans=orphans, watermark=watermark)


def check_log(log: TrackingLog, since: datetime, track: Track = untracked) -> LogHealth:
    """Check the tracking log from its end back to the newest compacted entry that precedes the decision in force at
    `since`. Earlier entries are not needed to restart, or to explain this decision or a later one. Damage is returned,
    not raised. Raises NewerFormat, LakeUnreachable and other LakeErrors."""
    numbers = log.numbers()
    damaged, forgotten, lost_end = list[LostEntry](), list[LostEntry](), list[str]()
    read, is_before, is_compacted, needed = 0, False, False, damaged
    first = min(log.live_numbers(), default=numbers[-1] + 1 if numbers else 0)
    archived = [number for number in numbers if number < first]
    if gone := {*range(min(archived, default=first), first)}.difference(archived):
        why = f"the archives lack {len(gone)} of the entries from it to {first}. No tracker needs them, but replays do"
        forgotten.append(LostEntry(min(gone), why))
    backwards = (*range(numbers[-1], first - 1, -1), *reversed(archived)) if numbers else ()
    entries = read_ahead(partial(_entry_or_damage, log), backwards)
    for number, entry in track(entries, total=len(numbers), description="entries of the tracking log"):
        read += 1
        if is_compacted := isinstance(entry, Compacted):
            needed = forgotten  # a tracker needs no earlier entry
        match entry:
            case str():
                damaged.append(LostEntry(number, entry))
            case Lost(contract=""):  # otherwise it records another contract, and nothing is lost
                forgotten.append(LostEntry(number, entry.what))
            case DecisionRecord():
                is_before = is_before or entry.decision.at <= since
            case Compacted() if is_before:
                break
    else:
        if numbers and numbers[0] and not is_compacted:  # after housekeeping, the first entry is a compacted one
            before = numbers[0] - 1
            needed.append(LostEntry(before, f"{entry_name(before)} and all earlier entries are missing"))
    if not damaged:
        try:
            log.catch_up_to_append()
        except CorruptObject as error:
            lost_end.append(str(error))
    return LogHealth(read, sorted(damaged), sorted(forgotten), lost_end)


def forget_entry(lake: Lake, windowing: Windowing, number: int) -> datetime | None:
    """Replace an unrepairable log entry with an entry that records the loss. No tracker may run at the same time.

    Returns the lower bound of the watermark after the loss, or None if there is no evidence for one. The bound is the
    watermark in the newest record of the log witness, or the end of the newest computed window if that is later. Raises
    LakeError, for example if the entry is intact.
    """
    log, computed = lake.tracking_log(), lake.diffs().computed()
    if not isinstance(_entry_or_damage(log, number), str):
        raise LakeError(f"entry {number} is intact, so nothing was changed; `tidemark repair` lists damaged entries")
    known = [log.watermark_noted()]
    if computed:
        with suppress(ValueError):  # the windows had another length
            known.append(windowing.named(max(computed)).end)
    floor = newest_of(*known)
    log.forget(number, "an operator declared it lost", floor)
    return floor


def _entry_or_damage(log: TrackingLog, number: int) -> Entry | str:
    try:
        return log.entry(number)
    except ObjectMissing:
        return f"{entry_name(number)} is missing"
    except CorruptObject as error:
        return str(error)
