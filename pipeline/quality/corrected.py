"""Follows the log of a windowed table, and records in `corrections` which rows changed when a window was recomputed.

A follower reads only what runs have committed, so it never conflicts with a run. Each replaced window is recorded once,
even if several followers run at the same time or are killed at any point.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import UNREADABLE, CorruptObject, TableConflict
from tidemark.pipeline.figures import newest_of
from tidemark.pipeline.lake.tables.corrections import CONTENT, Change, Corrections, Position
from tidemark.pipeline.lake.tables.delta_log import Commit, next_commits
from tidemark.pipeline.lake.tables.table import by_partition
from tidemark.pipeline.lake.tables.windowed import FORGOT, PARTITION, WindowedTable, run_of

logger = logging.getLogger(__name__)

VERSIONS_AT_ONCE = 20
"""Maximum number of versions of the followed table per commit to `corrections`."""

LONGEST = timedelta(minutes=1)
"""Duration after which a call of `follow` stops at its next commit. It is short because other runs wait for the call.
The next call continues where this one stopped."""

RACES = 10
"""Maximum number of attempts per call of `follow`. An attempt fails if another process commits first."""

DIFFS_KEY = ("stream_id", "event_time", "message_id")
"""The key columns of `heartbeat_diffs`. If a recomputed window uses a different copy of a heartbeat, the message id
differs, so one row is recorded as removed and one as added."""


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A windowed table whose changes are recorded: its name in `corrections`, and its key columns. Without a key, rows
    are compared as a multiset."""

    name: str
    table: WindowedTable
    key: Sequence[str] = ()


def follow(corrections: Corrections, followed: FollowedTable, clock: Clock) -> int:
    """Record the changes in the followed table since the last call, and return the number of recorded rows. The first
    call starts at the beginning of the table's log.

    Guarantee: the changes of each version are recorded once, even if several processes follow the table or are killed.
    Without a new commit, the call only updates the open table and reads one note. Raises LakeError, and TableConflict
    after RACES lost attempts. After an error, the next call continues from the last recorded version.
    """
    if (current := followed.table.table.current()) is None:
        return 0
    newest = Position(str(current.metadata().id), current.version())
    kept, generation = corrections.followed.found(followed.name)
    if kept == newest:
        return 0
    looked = kept.version if kept is not None and kept.table_id == newest.table_id else None
    rows, ends_at = 0, clock.monotonic() + LONGEST.total_seconds()
    for _ in range(RACES):
        try:
            through = newest
            for noted, reached in _stretches(corrections, followed, looked, newest, clock):
                rows, through = rows + noted, reached
                if clock.monotonic() >= ends_at:
                    break
        except TableConflict as conflict:
            lost = conflict
        else:
            corrections.followed.offer(followed.name, through, generation)
            return rows
    raise lost


def _stretches(
    corrections: Corrections, followed: FollowedTable, looked: int | None, newest: Position, clock: Clock
) -> Iterator[tuple[int, Position]]:
    noted = corrections.noted(newest.table_id)
    after = newest_of(looked, noted)
    if after is not None and after > newest.version:
        logger.warning(
            "%s is at version %d, but its corrections are recorded up to version %d: the table was restored to an "
            "earlier state. Corrections resume after version %d",
            *(followed.name, newest.version, after, after),
        )
    while after is None or after < newest.version:
        found = next_commits(followed.table.table, -1 if after is None else after, VERSIONS_AT_ONCE)
        found = [commit for commit in found if commit.version <= newest.version]
        first, end = (found[0].version, found[-1].version) if found else (newest.version + 1, newest.version)
        gap = [] if after is None or first == after + 1 else [_gap(followed, after + 1, first - 1)]
        through = Position(newest.table_id, end)
        changes = (_compared(followed, commit, *replaced) for commit in found for replaced in _replaced(commit))
        if rows := corrections.append(chain(gap, changes), clock.now(), noted, through):
            noted = end
        after = end
        yield rows, through


UNKNOWN = pl.DataFrame({"change": [Change.UNKNOWN.value]})
"""One row with the change `unknown`: it is not known which rows changed."""


def _gap(followed: FollowedTable, first: int, last: int) -> pa.Table:
    gone = f"the commits of versions {first} to {last} are gone or damaged"
    detail = f"{gone}, so it is unknown which windows they replaced"
    logger.warning("corrections of %s: %s", followed.name, detail)
    return _rows(UNKNOWN, table=followed.name, table_version=last, detail=detail)


def _replaced(commit: Commit) -> list[tuple[str, list[str], list[str]]]:
    old, new = defaultdict[str, list[str]](list), by_partition(commit.added)
    for path, partition in commit.removed.items():
        if partition is not None:
            old[partition].append(path)
    windows = old.keys() if FORGOT in commit.metadata else old.keys() & new.keys()
    return [(window, old[window], [file.path for file in new.get(window, ())]) for window in sorted(windows)]


def _compared(followed: FollowedTable, commit: Commit, window: str, old: list[str], new: list[str]) -> pa.Table:
    """Return the corrections of a window that a commit replaced. If an old or new file is gone or damaged, or a repair
    removed the window, return a single row with the change `unknown`."""
    detail = None
    try:
        changes = row_changes(_read(followed, old), _read(followed, new), followed.key)
    except (*UNREADABLE, pa.ArrowException, pl.exceptions.PolarsError) as error:
        detail = f"the rows cannot be compared: {error}"
        logger.warning("corrections of %s, window %s: %s", followed.name, window, detail)
        changes = UNKNOWN
    if changes.is_empty():  # the two runs' manifests need not be read
        return CONTENT.empty_table()
    old_run, new_run = run_of(old[0]), run_of(new[0]) if new else None
    return _rows(
        changes,
        table=followed.name,
        window=window,
        old_run=old_run,
        new_run=new_run,
        old_heartbeats_version=followed.table.input_version(old_run),
        new_heartbeats_version=new_run and followed.table.input_version(new_run),
        corrected_at=commit.at,
        table_version=commit.version,
        detail=detail,
    )


def _rows(changes: pl.DataFrame, **of_all: Any) -> pa.Table:
    """Return changes as rows of `corrections`. `of_all` contains the columns with the same value in all rows. All other
    columns are null."""
    same = {name: pl.lit(of_all.get(name)) for name in CONTENT.names if name not in changes.columns}
    return changes.with_columns(**same).select(CONTENT.names).to_arrow().cast(CONTENT)


def _read(followed: FollowedTable, paths: Sequence[str]) -> pl.DataFrame:
    if not paths:
        raise CorruptObject("a repair removed the window because its file was damaged; a later run recomputes it")
    read = (pl.DataFrame(followed.table.table.file_rows(path, None)) for path in paths)
    return pl.concat([rows.drop(PARTITION, strict=False) for rows in read], how="diagonal_relaxed")


SIDE = "tidemark.side"


def row_changes(old: pl.DataFrame, new: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return the differences between the rows of two frames, sorted by key.

    All rows are of one window. They have no column `window`, but `key` may name it.

    If a key occurs exactly once in each frame, and its two rows differ, the change is `changed`. Other rows are
    compared as multisets: a surplus copy in `old` is `removed`, a surplus copy in `new` is `added`. Two rows are equal
    if their JSON is equal. A column that only one frame has is null in the other one.

    In JSON, times are RFC 3339 with microseconds (in UTC if they have a zone), bytes are base64, and numbers that JSON
    cannot express are null. A map whose keys are not strings in JSON becomes a list of entries with `key` and `value`.
    """
    both = pl.concat(
        [old.with_columns(pl.lit(-1).alias(SIDE)), new.with_columns(pl.lit(1).alias(SIDE))], how="diagonal_relaxed"
    )
    columns = {name: dtype for name, dtype in both.schema.items() if name != SIDE}
    plain = both.select(*(_plain(pl.col(name), dtype).alias(name) for name, dtype in columns.items()), SIDE)
    named = [name for name in key if name != PARTITION]
    has_key = bool(key) and set(named) <= set(columns)
    rows = plain.select(
        (_json(named) if has_key and named else pl.lit("{}" if has_key else None, pl.String)).alias("key"),
        _json(list(columns)).alias("row"),
        SIDE,
    )
    differing = rows.group_by("key", "row").agg(net=pl.col(SIDE).sum()).filter(pl.col("net") != 0)
    copies = differing.select(pl.all().repeat_by(pl.col("net").abs())).explode(pl.all())
    if has_key:
        twice = rows.group_by("key", SIDE).len().filter(pl.col("len") > 1)["key"].unique()
        is_alone = ~pl.col("key").is_in(twice.implode())
    else:
        is_alone = pl.lit(False)
    # Rows with the same key and pair number are one change. A row whose key is not unique gets its own pair number.
    pair = pl.when(is_alone).then(-1).otherwise(pl.int_range(pl.len())).alias("pair")
    is_new = pl.col("net") > 0
    found = copies.group_by("key", pair).agg(
        old_row=pl.col("row").filter(~is_new).first(), new_row=pl.col("row").filter(is_new).first()
    )
    change = pl.coalesce(
        pl.when(pl.col("old_row").is_null()).then(pl.lit(Change.ADDED.value)),
        pl.when(pl.col("new_row").is_null()).then(pl.lit(Change.REMOVED.value)),
        pl.lit(Change.CHANGED.value),
    )
    return found.select(change.alias("change"), "key", "old_row", "new_row").sort("key", "old_row", "new_row")


def _json(names: Sequence[str]) -> pl.Expr:
    return pl.struct(names).struct.json_encode()


def _plain(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.Datetime(time_zone=None):
            return value.dt.strftime("%Y-%m-%dT%H:%M:%S%.6f")
        case pl.Datetime():
            return value.dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        case pl.Decimal() | pl.Date():
            return value.cast(pl.String)
        case pl.Binary():
            return value.bin.encode("base64")
        case pl.Map():
            entries = {"key": dtype.key, "value": dtype.value}
            plain = _plain(value.map.entries(), pl.List(pl.Struct(entries)))
            kinds = pl.DataFrame(schema=entries).select(_plain(pl.col(name), entries[name]) for name in entries).schema
            return plain.cast(pl.Map(*kinds.dtypes())) if kinds["key"] == pl.String else plain
        case pl.List():
            return value.list.eval(_plain(pl.element(), dtype.inner))
        case pl.Struct():
            fields = [_plain(value.struct.field(one.name), one.dtype).alias(one.name) for one in dtype.fields]
            return pl.when(value.is_not_null()).then(pl.struct(fields))
        case _:
            return value
