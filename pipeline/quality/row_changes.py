"""What changed between two computations of a window: rows as JSON text, compared in columns. Nothing here reads or
writes."""

from collections.abc import Sequence

import polars as pl

from tidemark.pipeline.lake.tables.corrections import Change

SIDE = "tidemark.side"
"""Which of the two a row is of: -1 or 1. No table's column has this name."""


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
    if has_key:
        keys = rows.join(differing.select("key").unique(), on="key", how="semi")
        twice = keys.group_by("key", SIDE).len().filter(pl.col("len") > 1).select("key").unique()
        alone = differing.join(twice, on="key", how="anti")
    else:
        twice, alone = differing.select("key").unique(), differing.clear()
    copies = differing.join(twice, on="key", how="semi", nulls_equal=True)
    copies = copies.select(pl.all().repeat_by(pl.col("net").abs())).explode(pl.all())
    is_new = pl.col("net") > 0
    paired = alone.filter(~is_new).join(alone.filter(is_new), on="key", how="full", coalesce=True, suffix="_new")
    found = pl.concat(
        [
            paired.select("key", old_row="row", new_row="row_new"),
            copies.select("key", old_row=pl.when(~is_new).then("row"), new_row=pl.when(is_new).then("row")),
        ]
    )
    change = (
        pl.when(pl.col("old_row").is_null())
        .then(pl.lit(Change.ADDED.value))
        .when(pl.col("new_row").is_null())
        .then(pl.lit(Change.REMOVED.value))
        .otherwise(pl.lit(Change.CHANGED.value))
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
