"""Computes heartbeat diffs and stream status with Polars, in the Python worker of a Spark task.

This module does no I/O and does not need Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.tables.diffs import StatusKind

NUMBER = "_window_number"
"""The column with the index of the row's window in the computed range. It is used in place of the window's key. Names
of temporary columns begin with an underscore; names of compared fields cannot."""

ID = pl.coalesce(pl.lit("p") + pl.col("publisher_id"), pl.lit("m") + pl.col("message_id")).alias("_id")
"""The id by which copies of a message are recognized: the publisher's id or, without one, the message id. A redelivery
keeps the message id. A retried publication keeps the publisher's id."""

ORDER = ("stream_id", "event_time", "_id", "publish_time", "message_id")

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class DiffPlan:
    """The settings by which diffs are computed. `fields` are the compared fields. `period` is the heartbeat period.
    It determines the number of missed heartbeats in a gap."""

    fields: Mapping[str, FieldKind]
    lookback: timedelta
    period: timedelta
    window_length: timedelta


def heartbeat_diffs(heartbeats: pl.DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> pl.DataFrame:
    """Return one diff per distinct heartbeat with an event time in `[start, end)`, sorted by stream and event time.

    `heartbeats` contains the columns of `columns_read`, and all heartbeats of its streams in `[start - lookback, end)`.
    `[start, end)` must consist of whole windows. In the result, `stream_id` is a Polars Enum.
    """
    needed = pl.col("event_time").is_between(start - plan.lookback, end, closed="left")
    ordered = in_order(heartbeats.filter(needed))
    return _with_differences(without_copies(ordered.lazy()), plan, start, end).collect()


def in_order(heartbeats: pl.DataFrame) -> pl.DataFrame:
    """Sort by stream, event time, id, publish time, message id, and then the other columns except `late`. Nulls come
    last. So if a message landed both before and after a field was added, the row with the field comes first. In the
    result, `stream_id` is a Polars Enum.

    For speed, rows are sorted by one number that combines stream and event time. The other columns are compared only
    between rows with equal numbers.
    """
    rows = heartbeats.rechunk()
    streams = pl.Enum(rows["stream_id"].unique().sort())
    rows = rows.with_columns(pl.col("stream_id").cast(streams))
    order_by = (*ORDER, *(name for name in rows.columns if name not in {*ORDER, "late"}))
    event_us = rows["event_time"].dt.epoch("us").to_numpy()
    low, high = (int(event_us.min()), int(event_us.max())) if len(rows) else (0, 0)
    span = high - low + 1
    if len(streams.categories) * span >= 1 << 63:
        return rows.with_columns(ID).sort(*order_by, nulls_last=True).drop("_id")
    number = rows["stream_id"].to_physical().to_numpy().astype(np.int64) * span + (event_us - low)
    order = pl.Series(number).arg_sort().to_numpy(writable=True)
    first = np.flatnonzero(np.diff(number[order]) == 0)
    if len(first):
        tied = np.union1d(first, first + 1)
        among = rows[order[tied]].with_columns(ID)
        order[tied] = order[tied][among.select(pl.arg_sort_by(*order_by, nulls_last=True)).to_series().to_numpy()]
    return rows[order]


def without_copies(ordered: pl.LazyFrame) -> pl.LazyFrame:
    """For each `(stream_id, event_time, id)`, keep only the copy with the smallest publish time. The kept row is late
    only if all copies are late. `ordered` must be sorted by `in_order`."""
    publisher, message = pl.col("publisher_id"), pl.col("message_id")
    has_same_id = pl.when(publisher.is_null()).then((message == message.shift()) & publisher.shift().is_null())
    is_copy = pl.all_horizontal(
        *(pl.col(name) == pl.col(name).shift() for name in ("stream_id", "event_time")),
        has_same_id.otherwise(publisher == publisher.shift()),
    )
    in_time = (~pl.col("late")).fill_null(value=False).cast(pl.Int64)
    counted = ordered.with_columns(
        _is_copy=is_copy.fill_null(value=False), _in_time_before=in_time.cum_sum() - in_time, _in_time=in_time.sum()
    ).filter(~pl.col("_is_copy"))
    # If the count before the next heartbeat equals the count before this one, no copy of this one was in time.
    before_next = pl.col("_in_time_before").shift(-1).fill_null(pl.col("_in_time"))
    return counted.with_columns(late=before_next == pl.col("_in_time_before"))


def _with_differences(single: pl.LazyFrame, plan: DiffPlan, start: datetime, end: datetime) -> pl.LazyFrame:
    """Compare each heartbeat in `[start, end)` with the previous one of its stream, in the order of `(event_time,
    id)`."""
    event_us = pl.col("event_time").dt.epoch("us")
    gap_us = event_us - event_us.shift()
    is_same_stream = pl.col("stream_id") == pl.col("stream_id").shift()
    has_previous = (is_same_stream & (gap_us <= duration_us(plan.lookback))).fill_null(value=False)
    paired = single.with_columns(
        _has_previous=has_previous,
        _gap_us=pl.when(has_previous).then(gap_us),
        **{f"_was_{name}": pl.when(has_previous).then(pl.col(name).shift()) for name in ("event_time", *plan.fields)},
        **{NUMBER: (event_us - to_us(start)) // duration_us(plan.window_length)},
    ).filter(pl.col("event_time").is_between(start, end, closed="left"))
    compared: list[pl.Expr] = []
    for name, kind in plan.fields.items():
        value, earlier, comparison = compared_columns(name, kind)
        before = pl.col(f"_was_{name}")
        if kind is FieldKind.NUMBER:
            delta = pl.col(name) - before
            outcome = pl.when(delta.is_finite()).then(delta)
        else:
            outcome = pl.when(pl.col("_has_previous")).then(pl.col(name).ne_missing(before))
        compared += [pl.col(name).alias(value), before.alias(earlier), outcome.alias(comparison)]
    period_us = duration_us(plan.period)
    # Round half up in integers, which is exact: Polars divides a float by a constant by multiplying with its inverse.
    periods = (2 * pl.col("_gap_us") + period_us) // (2 * period_us)
    a_second = pl.col("_gap_us") * 0 + SECOND_US  # a column, so that the quotient is exact, like Spark's
    return paired.select(
        "stream_id",
        "event_time",
        pl.col("_was_event_time").alias("previous_event_time"),
        (pl.col("_gap_us") / a_second).alias("gap_seconds"),
        pl.when(pl.col("_has_previous")).then(pl.max_horizontal(periods - 1, 0)).alias("missed_heartbeats"),
        *compared,
        "publish_time",
        "message_id",
        "late",
        NUMBER,
    )


def stream_status(
    diffs: pl.DataFrame, heartbeats: pl.DataFrame, plan: DiffPlan, start: datetime, end: datetime
) -> pl.DataFrame:
    """Return one row per window, stream and kind of change in `[start, end)`, sorted by kind and stream.

    `diffs` is the result of `heartbeat_diffs` for the range. `heartbeats` covers at least `[start - lookback, start)`
    for the same streams, and may contain copies. A row depends only on heartbeats in `[window's start - lookback,
    window's end)`.
    """
    start_us, length_us, lookback_us = to_us(start), duration_us(plan.window_length), duration_us(plan.lookback)
    windows = (to_us(end) - start_us) // length_us
    streams = diffs["stream_id"].dtype
    before = _last_before(heartbeats.lazy(), plan, start).with_columns(pl.col("stream_id").cast(streams))
    groups = pl.concat([_beats_by_window(diffs.lazy()), before], how="diagonal")
    same_stream_before = pl.col("stream_id") == pl.col("stream_id").shift()
    same_stream_after = pl.col("stream_id") == pl.col("stream_id").shift(-1)
    beside = groups.sort("stream_id", NUMBER).with_columns(
        before_us=pl.when(same_stream_before).then(pl.col("last_us").shift()),
        following=pl.when(same_stream_after).then(pl.col(NUMBER).shift(-1)),
    )
    reaches_back_to = start_us + pl.col(NUMBER) * length_us - lookback_us
    has_previous = (pl.col("before_us") >= reaches_back_to).fill_null(value=False)
    # Keep the groups inside the range: only groups before the range have a null `first_us`.
    there = beside.filter(pl.col("first_us").is_not_null()).with_columns(
        last_us=pl.when(has_previous).then(pl.col("before_us"))
    )
    # A stream is silent in each later window before its next heartbeat, if the window's lookback includes its last one.
    first = pl.max_horizontal(pl.col(NUMBER) + 1, 0)
    last = pl.min_horizontal(
        pl.col("following").fill_null(windows) - 1,
        (pl.col("last_us") + lookback_us - start_us) // length_us,
        windows - 1,
    )
    silent = beside.with_columns(first=first, last=last).filter(pl.col("first") <= pl.col("last"))
    stopped = silent.select(
        "stream_id", "last_us", pl.int_ranges(pl.col("first"), pl.col("last") + 1).alias(NUMBER)
    ).explode(NUMBER)
    beats = ("stream_id", "last_us", "first_us", "heartbeats", NUMBER)
    of_each_kind = [
        _of_kind(there.filter(pl.col("last_us").is_null()).select(*beats), StatusKind.STARTED),
        _of_kind(
            there.filter(pl.col("gaps") > 0).select(*beats, "gaps", "missed_heartbeats", "longest_gap_seconds"),
            StatusKind.MISSED,
        ),
        _of_kind(stopped, StatusKind.STOPPED),
    ]
    moments = {
        name: pl.from_epoch(column, time_unit="us").dt.replace_time_zone("UTC")
        for name, column in (("last_event_time", "last_us"), ("first_event_time", "first_us"))
    }
    return pl.concat(of_each_kind, how="diagonal").with_columns(**moments).sort("kind", "stream_id").collect()


def _of_kind(rows: pl.LazyFrame, kind: StatusKind) -> pl.LazyFrame:
    return rows.with_columns(kind=pl.lit(str(kind)))


def _beats_by_window(diffs: pl.LazyFrame) -> pl.LazyFrame:
    event_us, has_gap = pl.col("event_time").dt.epoch("us"), pl.col("missed_heartbeats") > 0
    return diffs.group_by("stream_id", NUMBER).agg(
        first_us=event_us.min(),
        last_us=event_us.max(),
        heartbeats=pl.len().cast(pl.Int64),
        gaps=has_gap.sum().cast(pl.Int64),
        missed_heartbeats=pl.col("missed_heartbeats").sum(),
        longest_gap_seconds=pl.col("gap_seconds").filter(has_gap).max(),
    )


def _last_before(heartbeats: pl.LazyFrame, plan: DiffPlan, start: datetime) -> pl.LazyFrame:
    """Return each stream's last heartbeat in `[start - lookback, start)`, with the number of its window. The numbers
    are negative, because window 0 begins at `start`."""
    before = pl.col("event_time").is_between(start - plan.lookback, start, closed="left")
    last = heartbeats.filter(before).group_by("stream_id").agg(last_us=pl.col("event_time").dt.epoch("us").max())
    number = (pl.col("last_us") - to_us(start)) // duration_us(plan.window_length)
    return last.with_columns(number.alias(NUMBER))
