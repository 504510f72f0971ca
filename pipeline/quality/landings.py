"""Finds heartbeats that landed too late: below the watermark (late), or after their window was computed (missed).

The first landing of a heartbeat is the first file that contains a copy of it.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from numpy.typing import NDArray

from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.tables.delta_log import Commit
from tidemark.pipeline.lake.tables.heartbeats import (
    HOUR,
    HOUR_FORMAT,
    IDENTITY,
    IDENTITY_SOURCE,
    PARTITION,
    identities,
    range_of,
)
from tidemark.pipeline.lake.tables.table import (
    MOMENT,
    DamagedFile,
    DataFile,
    LakeTable,
    as_data_files,
    by_partition,
    microseconds,
    of_partitions,
)
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.windows import Window, Windowing

logger = logging.getLogger(__name__)

FEW = 5
"""Maximum number of event hours or days that `unknown_sentence` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of heartbeats of one kind, such as late ones, per window key and per stream. The most affected streams
    come first.

    `rows` is the number of rows searched. `damaged` maps each unreadable file of `heartbeats` to its event hour. The
    counts may lack heartbeats of these hours.
    """

    rows: int = 0
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_stream.values())

    @property
    def share(self) -> float:
        return self.total / self.rows if self.rows else 0.0


def unknown_sentence(what: str, damaged: Mapping[str, str]) -> str:
    """Return a sentence that names the hours or days for which the messages of one kind are unknown. `what` is the
    kind, such as "late". `damaged` maps each damaged file to its event hour (for `heartbeats`) or day (for
    `quarantine`). If `damaged` is empty, return an empty string."""
    if not damaged:
        return ""
    hours = sorted(set(damaged.values()))
    named = f"{', '.join(hours[:FEW])}{' and more' if len(hours) > FEW else ''}"
    return (
        f"it is unknown which messages of {named} are {what}: {counted(len(damaged), 'damaged file')}, the first is "
        f"{min(damaged)}; `tidemark repair` says what depends on the damage, and what to do"
    )


NOT_COMPUTED = np.iinfo(np.int64).max
"""Placeholder for the version of `heartbeats` from which a window was computed, if the window is not computed or the
version is unknown. It is above every real version, so no heartbeat counts as missed in such a window."""


@dataclass(frozen=True, slots=True, order=True)
class StaleWindow:
    """A window whose input has grown, or may have grown, since it was computed.

    `missed` is the number of new heartbeats in the window, and `missed_before` the number in its lookback.
    `computed_from` is the version of `heartbeats` from which the window was computed; None if it is unknown.
    """

    window: Window
    missed: int
    missed_before: int
    computed_from: int | None

    @property
    def why(self) -> str:
        """The reason why the window is stale."""
        if self.computed_from is None:
            return "the version of heartbeats from which it was computed is unknown, and so is what has landed since"
        return (
            f"computed from version {self.computed_from} of heartbeats; since then, {self.missed} landed in the window "
            f"and {self.missed_before} in its lookback"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedHeartbeats(Counts):
    """The number of missed heartbeats as of one version of `heartbeats` and one version of `heartbeat_diffs`.

    A heartbeat is missed if it landed after its window was computed. It counts once, in its own window, until the
    window is recomputed. After that, it counts in `mended`, a total since the check last started over. `left` is the
    amount that later steps of the check must still read, in commits, manifests or hours of event time. Until `left` is
    0, the other figures are incomplete.
    """

    heartbeats_version: int = -1
    diffs_version: int = -1
    stale: Sequence[StaleWindow] = ()
    mended: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True)
class AffectedWindows:
    """Finds the windows that a heartbeat affects: its own window, and each later window that starts within the lookback
    after its event time. Times in arrays are in microseconds since the epoch. A window is identified by its start."""

    windowing: Windowing

    def key(self, start_us: int) -> str:
        return self.windowing.containing(from_us(start_us)).key

    def starts(self, event_us: Ints) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """Yield the windows that each event time may affect, as pairs of arrays.

        Pair n is about the n-th window after the event time's own window (pair 0 is about its own window). The first
        array has the start of the window. The second array says whether the event time affects the window.
        """
        length_us, lookback_us = duration_us(self.windowing.length), duration_us(self.windowing.lookback)
        own = event_us - event_us % length_us
        for offset in range(0, length_us + lookback_us, length_us):
            yield own + offset, event_us >= own + offset - lookback_us

    def keys_of(self, event_us: Ints) -> set[str]:
        """Return the keys of the windows that at least one of the event times affects."""
        return {self.key(start) for starts, affects in self.starts(event_us) for start in np.unique(starts[affects])}

    def keys_between(self, oldest: datetime, newest: datetime) -> Iterator[str]:
        """Yield the keys of all windows that event times in `[oldest, newest]` may affect, in order."""
        each = self.windowing
        affected = each.between(each.containing(oldest).start, newest + each.lookback + each.length)
        return (window.key for window in affected)

    def versions_of(self, starts: Ints, versions: Mapping[str, int]) -> Ints:
        """Return, for each window, the version of `heartbeats` from which it was computed, according to `versions`;
        NOT_COMPUTED for a window that is not in `versions`."""
        each, rows = np.unique(starts, return_inverse=True)
        known = [versions.get(self.key(start), NOT_COMPUTED) for start in each.tolist()]
        return np.array(known, dtype=np.int64)[rows]


def missed_by(
    landings: pa.Table, versions: Mapping[str, int], affected: AffectedWindows
) -> tuple[pa.Table, MissedHeartbeats]:
    """Return the rows of `landings` that at least one computed window lacks, and the number of missed heartbeats among
    them.

    `landings` contains the columns of LANDINGS. `versions` maps each computed window to the version of `heartbeats`
    from which it was computed. In the result, `mended` is the number of heartbeats that were missed at the last check
    and are in a recomputed window now.
    """
    event_us, landed_with = microseconds(landings["event_time"]), landings["version"].combine_chunks().to_numpy()
    was_missed = landings["missed"].combine_chunks().to_numpy(zero_copy_only=False)
    is_missed, is_computed, is_lacking = (np.zeros(len(event_us), np.bool_) for _ in range(3))
    own, before = Counter[int](), Counter[int]()
    for place, (starts, affects) in enumerate(affected.starts(event_us)):
        computed_from = affected.versions_of(starts, versions)
        lacks = affects & (landed_with > computed_from)
        is_lacking |= lacks
        if not place:
            is_missed, is_computed = lacks, computed_from != NOT_COMPUTED
        windows, counts = np.unique(starts[lacks], return_counts=True)
        (before if place else own).update(dict(zip(windows.tolist(), counts.tolist(), strict=True)))
    by_stream = Counter(landings["stream_id"].filter(pa.array(is_missed)).to_pylist())
    missed = MissedHeartbeats(
        by_window={affected.key(start): own[start] for start in sorted(own)},
        by_stream=dict(by_stream.most_common()),
        stale=[
            StaleWindow(affected.windowing.named(key), own[start], before[start], versions[key])
            for start in sorted(own.keys() | before.keys())
            for key in [affected.key(start)]
        ],
        mended=int(np.count_nonzero(was_missed & ~is_missed & is_computed)),
    )
    judged = landings.set_column(landings.column_names.index("missed"), "missed", pa.array(is_missed, pa.bool_()))
    return judged.filter(pa.array(is_lacking)), missed


LANDINGS = pa.schema(
    {"stream_id": pa.string(), "event_time": MOMENT, "id": pa.string(), "version": pa.int64(), "missed": pa.bool_()}
)
"""The columns of a table of first landings. A row identifies a heartbeat. `version` is the version of `heartbeats` with
which the heartbeat first landed. `missed` says whether the heartbeat's own window was computed without it."""

NO_ROWS = pa.Table.from_batches(
    [], pa.schema({**dict.fromkeys(IDENTITY_SOURCE, pa.string()), "event_time": MOMENT, "late": pa.bool_()})
)
"""An empty table with the columns that are read from files of `heartbeats`: IDENTITY_SOURCE and `late`."""

EVERY, NONE = pc.scalar(True), pc.scalar(False)
"""A filter that accepts all rows, and a filter that accepts none."""


def first_landings(
    heartbeats: LakeTable, files: Sequence[DataFile], before: datetime, now: DeltaTable, since: Sequence[Commit]
) -> tuple[pa.Table, dict[str, str]]:
    """Return the heartbeats that first landed with one of `files`, and whose event times are below `before`. The result
    has one row of LANDINGS per heartbeat. Also return the damaged files with their event hours; these hours are left
    out.

    `now` is the table at the version of the newest file, or later. `since` contains the consecutive commits that added
    the files, and may contain later ones. Assumption: if a copy landed later, it is in one of `files`. Only one event
    hour's files are in memory at a time. Raises LakeError, and ObjectMissing if a file or an earlier version is gone.
    """
    by_hour = by_partition(files)
    held_by_hour = _held_before(heartbeats, min(file.version for file in files), by_hour, now, since)
    found, damaged = [LANDINGS.empty_table()], dict[str, str]()
    wanted = pc.field("event_time") < pa.scalar(before, MOMENT)
    for hour, of_hour in sorted(by_hour.items()):
        try:
            read = ((file, read_rows(heartbeats, file, wanted)) for file in of_hour)
            rows = earliest([landings(identities(rows), file.version) for file, rows in read])
            if rows.num_rows and (held_files := held_by_hour.get(hour)):
                held = held_in(heartbeats, held_files, rows)
                rows = rows.join(held, list(IDENTITY), join_type="left anti", use_threads=False).select(LANDINGS.names)
        except DamagedFile as error:
            logger.warning("it is unknown which heartbeats of the event hour %s were missed: %s", hour, error)
            damaged[error.path] = hour
        else:
            found.append(rows)
    return pa.concat_tables(found), damaged


def _held_before(
    heartbeats: LakeTable, version: int, hours: Iterable[str], now: DeltaTable, since: Sequence[Commit]
) -> dict[str, list[DataFile]]:
    """Return the files of the given event hours as of the version before `version`, keyed by event hour."""
    if since[-1].version != now.version() or not all(commit.is_append for commit in since):
        earlier = heartbeats.at(version - 1) if version > 0 else None
        return {} if earlier is None else files_by_hour(heartbeats.listed(earlier), hours)
    # The commits only added files. This is cheaper than opening the earlier version, which reads a checkpoint again.
    later = {file.path for commit in since for file in commit.added if file.version >= version}
    found = files_by_hour(heartbeats.listed(now), hours)
    return {hour: [file for file in of_hour if file.path not in later] for hour, of_hour in found.items()}


def landings(heartbeats: pa.Table, version: int) -> pa.Table:
    """Convert heartbeats, which have the columns of IDENTITY, to rows of LANDINGS with this version. `missed` is false
    in all rows."""
    count = heartbeats.num_rows
    rows = heartbeats.append_column("version", pa.repeat(version, count))
    return rows.append_column("missed", pa.repeat(False, count)).cast(LANDINGS)


def earliest(landed: Sequence[pa.Table]) -> pa.Table:
    """Merge tables of LANDINGS into one row per heartbeat. The row has the smallest version of the merged rows. Its
    `missed` is true if it is true in any of them."""
    rows = pa.concat_tables(landed).group_by(list(IDENTITY), use_threads=False)
    first = rows.aggregate([("version", "min"), ("missed", "max")])
    named = first.rename_columns({"version_min": "version", "missed_max": "missed"})
    return named.select(LANDINGS.names).cast(LANDINGS)


def files_by_hour(files: pa.Table, hours: Iterable[str]) -> dict[str, list[DataFile]]:
    """Return the files of the given event hours, keyed by event hour. `files` is a result of `LakeTable.listed`."""
    return by_partition(as_data_files(of_partitions(files, PARTITION, set(hours)), PARTITION))


def held_in(heartbeats: LakeTable, files: Sequence[DataFile], rows: pa.Table, only: pc.Expression = EVERY) -> pa.Table:
    """Return the identities of the heartbeats in `files` that may be copies of `rows`: same streams, and event times in
    the range of `rows`. Only heartbeats that match the filter `only` are returned. A file is read only if it may
    contain an event time of `rows`. Raises the errors of `read_rows`."""
    found = [identities(NO_ROWS)]
    if not rows.num_rows:
        return found[0]
    times = np.unique(microseconds(rows["event_time"]))
    least, greatest = (pa.scalar(int(time), pa.int64()).cast(MOMENT) for time in (times[0], times[-1]))
    of_streams = pc.field("stream_id").isin(pc.unique(rows["stream_id"]))
    alike = (pc.field("event_time") >= least) & (pc.field("event_time") <= greatest) & of_streams & only
    for file in files:
        oldest, newest = map(to_us, range_of(file))
        if np.searchsorted(times, oldest) < np.searchsorted(times, newest, side="right"):
            found.append(identities(read_rows(heartbeats, file, alike)))
    return pa.concat_tables(found)


def read_rows(heartbeats: LakeTable, file: DataFile, wanted: pc.Expression) -> pa.Table:
    """Return the rows of a file that match the filter `wanted`, with the columns of NO_ROWS. Raises LakeError,
    DamagedFile, and ObjectMissing if the file is gone."""
    return heartbeats.file_rows(file.path, NO_ROWS.schema, wanted)


HOURS_AT_ONCE = 6
"""Number of event hours per step of a comparison. With 10,000 streams, reading one hour of both tables takes some
seconds."""

HELD = pa.schema({"stream_id": pa.string(), "event_time": MOMENT, "message_id": pa.string()})
"""The columns by which a row of `heartbeat_diffs` identifies the heartbeat from which it was computed."""


def ids_of(heartbeats: DeltaTable, diffs: DeltaTable) -> tuple[str, str]:
    """Return Delta's ids of the two tables. A recreated table has a new id."""
    return str(heartbeats.metadata().id), str(diffs.metadata().id)


class TableComparison:
    """Compares the contents of `heartbeats` at one version with `heartbeat_diffs` at one version, step by step.

    Results so far:
    - `lacking`: heartbeats that are missing from their own computed window, as rows of LANDINGS. Their version is the
      compared version of `heartbeats`.
    - `unknown`: windows that may lack heartbeats of their lookback, the time before their start.
    - `damaged`: unreadable files of `heartbeats`, with their event hours. These hours are not compared.

    One event hour is in memory at a time.
    """

    def __init__(
        self, landed: LakeTable, computed: LakeTable, versions: tuple[int, int], affected: AffectedWindows
    ) -> None:
        """Open both tables at the given versions. Raises LakeError, and ObjectMissing if a version can no longer be
        read."""
        self.heartbeats, self.diffs = (table.at(at) for table, at in zip((landed, computed), versions, strict=True))
        self.tables = ids_of(self.heartbeats, self.diffs)
        self.lacking = LANDINGS.empty_table()
        self.unknown: set[str] = set()
        self.damaged: dict[str, str] = {}
        self._landed, self._computed, self._files = landed, computed, landed.listed(self.heartbeats)
        self._affected = affected
        self._hours = sorted({partition[PARTITION] for partition in self.heartbeats.partitions()})

    def advance(self, versions: Mapping[str, int]) -> int:
        """Compare what landed with what was computed, for the next HOURS_AT_ONCE hours of event time. Return the number
        of hours left.

        `versions` maps each computed window to the version of `heartbeats` from which it was computed. Hours without a
        computed window are skipped. Raises LakeError. After an error, the next call retries the same hour.
        """
        for hour in self._hours[:HOURS_AT_ONCE]:
            begins = datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)
            if any(key in versions for key in self._affected.keys_between(begins, begins + HOUR)):
                self._compare(hour, versions)
            self._hours.remove(hour)
        return len(self._hours)

    def _compare(self, hour: str, versions: Mapping[str, int]) -> None:
        if (rows := self._rows(hour)) is None:
            return
        landed = identities(rows).append_column("message_id", rows["message_id"].cast(pa.string()))
        own, _ = next(self._affected.starts(microseconds(landed["event_time"])))
        held = self._held([key for key in map(self._affected.key, np.unique(own).tolist()) if key in versions])
        of_copies = landed.join(held, HELD.names, use_threads=False).group_by(list(IDENTITY), use_threads=False)
        each = of_copies.aggregate([("is_held", "max")])
        is_held = pc.fill_null(each["is_held_max"], False).combine_chunks().to_numpy(zero_copy_only=False)
        later = self._affected.starts(microseconds(each["event_time"]))
        own, _ = next(later)
        own_version = self._affected.versions_of(own, versions)
        is_lacking = ~is_held & (own_version != NOT_COMPUTED)
        lacking = landings(each.filter(pa.array(is_lacking)).select(IDENTITY), self.heartbeats.version())
        self.lacking = pa.concat_tables([self.lacking, lacking])
        for starts, affects in later:
            # A heartbeat that is in its own window was read by every window computed from the same or a later version.
            may_lack = ~is_lacking & affects & (self._affected.versions_of(starts, versions) < own_version)
            self.unknown.update(map(self._affected.key, np.unique(starts[may_lack]).tolist()))

    def _rows(self, hour: str) -> pa.Table | None:
        """Return the landed rows of an event hour; None if a file of the hour is damaged or gone."""
        found = [NO_ROWS]
        for file in files_by_hour(self._files, [hour]).get(hour, ()):
            try:
                found.append(read_rows(self._landed, file, EVERY))
            except (DamagedFile, ObjectMissing) as error:
                logger.warning("it is unknown which heartbeats of the event hour %s were missed: %s", hour, error)
                self.damaged[file.path] = hour
                return None
        return pa.concat_tables(found)

    def _held(self, windows: list[str]) -> pa.Table:
        rows = self._computed.rows(self.diffs, HELD.names, partitions=windows) if windows else HELD.empty_table()
        return rows.cast(HELD).append_column("is_held", pa.repeat(True, rows.num_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Counts):
    """The number of late heartbeats with event times in or after the hour of `since`. A heartbeat is late only if all
    of its copies landed late, and counts once. `copies` is the number of all other rows that landed late."""

    since: datetime
    copies: int = 0


LATE_WITHIN = timedelta(days=1)
"""Late heartbeats are counted from this long before the watermark, rounded down to a whole hour of event time."""

NOTHING = identities(NO_ROWS)


@dataclass(frozen=True, slots=True)
class _Hour:
    """Two tables with the columns of IDENTITY: the late rows of an event hour, and the rows of the same heartbeats that
    landed in time. `files` contains the paths of the hour's files that both tables cover."""

    files: frozenset[str]
    late: pa.Table
    in_time: pa.Table

    @property
    def first(self) -> pa.Table:
        """The late heartbeats, each once. A heartbeat with a copy that landed in time is left out."""
        each = self.late.group_by(list(IDENTITY), use_threads=False).aggregate([])
        return each.join(self.in_time, list(IDENTITY), join_type="left anti", use_threads=False)


UNREAD = _Hour(frozenset(), NOTHING, NOTHING)


class LateHeartbeats:
    """Counts the late heartbeats in a lake. Not thread-safe.

    An event hour is read only if the statistics of its files allow late rows. Each call reads only new files, and
    earlier files that may contain copies of late heartbeats. If files of an hour were replaced, all are read again.
    """

    def __init__(self, heartbeats: LakeTable, windowing: Windowing) -> None:
        self._heartbeats = heartbeats
        self._windowing = windowing
        self._hours: dict[str, _Hour] = {}

    def since(self, since: datetime) -> Late:
        """Count the late heartbeats with event times in or after the hour of `since`. Raises LakeError."""
        files = self._heartbeats.listed()
        files = files.filter(pc.greater_equal(files[f"partition.{PARTITION}"], since.strftime(HOUR_FORMAT)))
        suspects = files  # the files whose statistics allow late rows
        if "max.late" in files.column_names:
            suspects = files.filter(pc.fill_null(files["max.late"].cast(pa.bool_()), True))
        paths = set(suspects["path"].to_pylist())
        of_hours = files_by_hour(files, set(suspects[f"partition.{PARTITION}"].to_pylist()))
        damaged = dict[str, str]()
        known, self._hours = self._hours, {}
        for name, of_hour in of_hours.items():
            self._hours[name] = known.get(name, UNREAD)
            try:
                self._hours[name] = self._read(self._hours[name], of_hour, paths)
            except (DamagedFile, ObjectMissing) as error:
                logger.warning("it is unknown which heartbeats of the event hour %s are late: %s", name, error)
                damaged[getattr(error, "path", f"{PARTITION}={name}")] = name
        by_window, by_stream, copies = Counter[int](), Counter[str](), 0
        for hour in self._hours.values():
            first = hour.first
            event_us = microseconds(first["event_time"])
            by_window.update((event_us - event_us % duration_us(self._windowing.length)).tolist())
            by_stream.update(first["stream_id"].to_pylist())
            copies += hour.late.num_rows - first.num_rows
        return Late(
            since=since,
            rows=pc.sum(files["num_records"]).as_py() or 0,
            by_window={self._windowing.containing(from_us(start)).key: by_window[start] for start in sorted(by_window)},
            by_stream=dict(by_stream.most_common()),
            copies=copies,
            damaged=damaged,
        )

    def _read(self, known: _Hour, files: Sequence[DataFile], may_be_late: AbstractSet[str]) -> _Hour:
        """Read the files of an event hour that are not in `known`, the result of the last call for this hour, and
        return the new result. `may_be_late` contains the paths of the files that may contain late rows."""
        if not known.files <= {file.path for file in files}:
            known = UNREAD  # files were replaced, so all are read again
        new = [file for file in files if file.path not in known.files]
        rows = [read_rows(self._heartbeats, file, pc.field("late")) for file in new if file.path in may_be_late]
        late = pa.concat_tables([NOTHING, *map(identities, rows)])
        every_late = _compact([known.late, late])
        before = [file for file in files if file.path in known.files]
        sought = ((new, every_late), (before, late))
        held = pa.concat_tables(held_in(self._heartbeats, *each, ~pc.field("late")) for each in sought)
        in_time = held.join(every_late, list(IDENTITY), join_type="left semi", use_threads=False)
        return _Hour(frozenset(file.path for file in files), every_late, _compact([known.in_time, in_time]))


def _compact(tables: Sequence[pa.Table]) -> pa.Table:
    """Copy the rows of several tables into one chunk. The small results of a join refer to large buffers, which stay in
    memory until the results are copied."""
    return pa.concat_tables(tables).combine_chunks()


def late_since(watermark: datetime | None, now: datetime) -> datetime:
    """Return the event time from which late heartbeats are counted: LATE_WITHIN before the watermark (without one,
    before `now`), rounded down to the hour, because whole hours are counted."""
    since = (now if watermark is None else watermark) - LATE_WITHIN
    return since.replace(minute=0, second=0, microsecond=0)
