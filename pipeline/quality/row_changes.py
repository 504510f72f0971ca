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
