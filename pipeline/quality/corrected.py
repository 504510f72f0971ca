"""Follows the log of a table by window, and notes in `corrections` what changed where a window was computed again.

Nothing here is in a run's way: it reads what runs have committed. Any number of followers may look at the same time,
and be killed at any point: each replaced window is noted once.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import LakeError, LakeFull, LakeUnreachable, LakeUnwritable, ObjectMissing, TableConflict
from tidemark.pipeline.lake.tables.corrections import CONTENT, Change, Corrections, Position
from tidemark.pipeline.lake.tables.delta_log import Commit, commits, first_commit
from tidemark.pipeline.lake.tables.table import table_errors
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable, run_of

logger = logging.getLogger(__name__)

VERSIONS_AT_ONCE = 20
"""Versions whose corrections are one commit at most."""

LONGEST = timedelta(minutes=1)
"""A look ends with the commit after this, and the next one goes on: the run that looks keeps others waiting."""

RACES = 10
"""The number of times that a look begins again because another follower was first."""

DIFFS_KEY = ("stream_id", "event_time", "message_id")
"""The key of a row of `heartbeat_diffs`. If another copy of a heartbeat wins, with another message id, its row is
removed and one is added."""


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table by window, the name that its corrections have, and the columns that tell its rows apart (none: rows are
    compared as a multiset)."""

    name: str
    table: WindowedTable
    key: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """A window that a commit replaced: the table's version and when it was committed, the old files and the new."""

    version: int
    at: datetime | None
    window: str
    old: list[str]
    new: list[str]


def follow(corrections: Corrections, followed: FollowedTable, clock: Clock) -> int:
    """Note what changed in the table since the last look; returns how many rows. The first look goes back as far as the
    log does.

    Guarantee: each version is noted once, however many follow and wherever they are killed. A table without new commits
    costs one read and commits nothing, and so do commits that replace no window. Raises LakeError, TableConflict; then
    the next look goes on from what was noted.
    """
    current = followed.table.table.current()
    if current is None:
        return 0
    newest = Position(str(current.metadata().id), current.version())
    kept, generation = corrections.looked_at(followed.name)
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
            corrections.keep(followed.name, through, generation)
            return rows
    raise lost


def _stretches(
    corrections: Corrections, followed: FollowedTable, looked: int | None, newest: Position, clock: Clock
) -> Iterator[tuple[int, Position]]:
    """Note stretch by stretch, and tell how many rows each has, and through where it goes."""
    noted = corrections.noted(newest.table_id)
    after = max((version for version in (looked, noted) if version is not None), default=None)
    if after is not None and after > newest.version:
        logger.warning(
            "%s is at version %d, and its corrections are noted through %d: it was put back to an earlier state. "
            "Corrections go on after that version",
            *(followed.name, newest.version, after),
        )
    if after is not None and after >= newest.version:
        return
    first = first_commit(followed.table.table, -1 if after is None else after)
    first = newest.version + 1 if first is None else first
    gap: Iterable[pa.Table] = () if after is None or first == after + 1 else [_gap(followed, after + 1, first - 1)]
    for start in range(first, max(newest.version, first) + 1, VERSIONS_AT_ONCE):
        end = min(start + VERSIONS_AT_ONCE - 1, newest.version)
        tables = chain(gap, _corrections(followed, start, end))
        through = Position(newest.table_id, end)
        if rows := corrections.append(tables, clock.now(), noted, through):
            noted = end
        gap = ()
        yield rows, through


def _gap(followed: FollowedTable, first: int, last: int) -> pa.Table:
    """The row for versions whose commits are gone."""
    detail = f"the commits of versions {first} to {last} are gone: which windows they replaced is not known"
    logger.warning("corrections of %s: %s", followed.name, detail)
    says = {"table": followed.name, "change": Change.UNKNOWN.value, "table_version": last, "detail": detail}
    return _rows(says, 1)


def _corrections(followed: FollowedTable, first: int, last: int) -> Iterator[pa.Table]:
    """The rows of each window that these versions replaced, unless it has the same rows as before."""
    for commit in commits(followed.table.table, first - 1, last):
        for replacement in _replaced(commit):
            rows = _compared(followed, replacement)
            if len(rows):
                yield rows


def _replaced(commit: Commit) -> list[Replacement]:
    """The windows that lost files and got others. A window that only got some is computed for the first time; one that
    only lost some is no longer kept."""
    old, new = defaultdict[str | None, list[str]](list), defaultdict[str | None, list[str]](list)
    for found, files in ((old, commit.removed), (new, commit.added)):
        for file in files:
            found[file.partition].append(file.path)
    both = sorted(window for window in old if window and window in new)
    return [Replacement(commit.version, commit.at, window, old[window], new[window]) for window in both]


def _compared(followed: FollowedTable, replacement: Replacement) -> pa.Table:
    """The corrections of a window, or that they are unknown because a file is gone or damaged."""
    detail = None
    try:
        old, new = (_read(followed, paths) for paths in (replacement.old, replacement.new))
        changes = row_changes(old, new, followed.key)
    except (LakeUnreachable, LakeUnwritable, LakeFull):
        raise
    except (LakeError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        detail = f"the rows cannot be compared: {error}"
        logger.warning("corrections of %s, window %s: %s", followed.name, replacement.window, detail)
        changes = pl.DataFrame({"change": [Change.UNKNOWN.value]})
    if changes.is_empty():
        return CONTENT.empty_table()
    old_run, new_run = run_of(replacement.old[0]), run_of(replacement.new[0])
    of_all = {
        "table": followed.name,
        "window": replacement.window,
        "old_run": old_run,
        "new_run": new_run,
        "old_heartbeats_version": followed.table.input_version(old_run),
        "new_heartbeats_version": followed.table.input_version(new_run),
        "corrected_at": replacement.at,
        "table_version": replacement.version,
        "detail": detail,
    }
    return _rows({**of_all, **{name: changes[name].to_arrow() for name in changes.columns}}, len(changes))


def _rows(columns: Mapping[str, Any], count: int) -> pa.Table:
    """Rows of CONTENT: an array, or one value for all of them, by column; null where none is given."""
    given = {column.name: columns.get(column.name) for column in CONTENT}
    arrays = [
        value.cast(column.type) if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, column.type), count)
        for value, column in zip(given.values(), CONTENT, strict=True)
    ]
    return pa.table(arrays, schema=CONTENT)


def _read(followed: FollowedTable, paths: Iterable[str]) -> pl.DataFrame:
    """All rows of some files, whatever version lists them. Raises ObjectMissing if one is gone, LakeError,
    ArrowException if one is damaged."""
    table = followed.table.table
    files, read = table.folder, list[pl.DataFrame]()
    for path in paths:
        with (
            table_errors(table.uri, lambda error: ObjectMissing(f"a file is gone: {error}")),
            files.open_input_file(path) as opened,
        ):
            rows = pl.DataFrame(pq.read_table(opened, use_threads=False))
        read.append(rows.drop(PARTITION, strict=False))
    return pl.concat(read, how="diagonal_relaxed")


SIDE = "tidemark.side"
"""The side of a row, old (-1) or new (1). No table's column has this name."""


def row_changes(old: pl.DataFrame, new: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The rows that only one of the two has, in the order of their keys; none if both have the same rows.

    A row that has its key alone, in `old` and in `new`, is `changed`. Other rows are compared as multisets: each copy
    too many is `removed`, each too few `added`. Two rows are the same if their JSON is. A column that one side lacks is
    null there. Times are RFC 3339 in UTC with microseconds, numbers that JSON does not have null, bytes base64.
    """
    both = pl.concat(
        [old.with_columns(pl.lit(-1).alias(SIDE)), new.with_columns(pl.lit(1).alias(SIDE))], how="diagonal_relaxed"
    )
    columns = {name: dtype for name, dtype in both.schema.items() if name != SIDE}
    plain = both.select(*(_plain(pl.col(name), dtype).alias(name) for name, dtype in columns.items()), SIDE)
    has_key = bool(key) and set(key) <= set(columns)
    rows = plain.select(
        _json(key).alias("key") if has_key else pl.lit(None, pl.String).alias("key"),
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
    # Rows that share a pair are one change; the pair of a row that is not alone has no other.
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
    """A value as JSON has it."""
    match dtype:
        case pl.Float32() | pl.Float64():
            return pl.when(value.is_finite()).then(value)
        case pl.Datetime(time_zone=None):
            return value.dt.strftime("%Y-%m-%dT%H:%M:%S%.6f")
        case pl.Datetime():
            return value.dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        case pl.Decimal() | pl.Date():
            return value.cast(pl.String)
        case pl.Binary():
            return value.bin.encode("base64")
        case pl.List():
            return value.list.eval(_plain(pl.element(), dtype.inner))
        case pl.Struct():
            fields = [_plain(value.struct.field(one.name), one.dtype).alias(one.name) for one in dtype.fields]
            return pl.when(value.is_not_null()).then(pl.struct(fields))
        case _:
            return value
