"""Diffs and the streams' status as DataFrame functions, another way to the rows that the product computes in columns.

Every function takes no session. The session's time zone must be UTC.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812

from tests.spark.beats import FIELDS, PLAN, Beat, at, by_kind, by_message
from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.tables.diffs import StatusKind
from tidemark.pipeline.lake.tables.heartbeats import columns_read
from tidemark.pipeline.spark.frames import moment, spark_schema
from tidemark.pipeline.windows import Windowing

SECONDS = 1_000_000


def by_frames(
    spark: SparkSession, beats: Iterable[Beat], start: float, end: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What Spark makes of the beats, as `in_columns` orders it."""
    landed = spark.createDataFrame([beat.row() for beat in beats], input_schema(FIELDS))
    diffs = heartbeat_diffs(landed, PLAN, at(start), at(end))
    status = stream_status(diffs, landed, PLAN, at(start), at(end))
    return (
        sorted((row.asDict() for row in diffs.collect()), key=by_message),
        sorted((row.asDict() for row in status.collect()), key=by_kind),
    )


def input_schema(fields: Mapping[str, FieldKind]) -> T.StructType:
    """The columns of `heartbeats` that diffs are made from; a field that a file lacks reads as null."""
    return spark_schema(columns_read(fields))


def heartbeat_diffs(heartbeats: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> DataFrame:
    """The diffs of every heartbeat with an event time in `[start, end)`, sorted by stream within each partition.

    `heartbeats` has the columns of `input_schema` and holds at least `[start - lookback, end)`. A row depends on
    that interval alone, so any way of cutting a range into runs gives the same rows. `previous_...` is the stream's
    heartbeat before, at most `lookback` earlier; null if there is none. Assumption: the range is of whole windows.
    """
    read = heartbeats.where(F.col("event_time").between(moment(start - plan.lookback), moment(end)))
    return with_differences(without_copies(identified(read)), plan, start, end)


def identified(heartbeats: DataFrame) -> DataFrame:
    """Beside each message its `id`, the publisher's where there is one, else the message's: a redelivery has the same
    message id, a retried publication the same publisher's id. And a number for its stream, since numbers are compared
    much faster than names that begin alike."""
    publishers, messages = F.concat(F.lit("p"), "publisher_id"), F.concat(F.lit("m"), "message_id")
    return heartbeats.select(
        "*", F.coalesce(publishers, messages).alias("id"), F.xxhash64("stream_id").alias("stream_hash")
    )


def same_stream() -> WindowSpec:
    """One for all, so that rows are exchanged and sorted once. The copies of a heartbeat stand together."""
    return Window.partitionBy("stream_hash", "stream_id").orderBy(
        "event_time", "id", F.desc("publish_time"), F.desc("message_id")
    )


def without_copies(identified: DataFrame) -> DataFrame:
    """One row for each heartbeat: key `(stream_id, event_time, id)`, the copy with the smallest publish time, which is
    the last in order. A heartbeat is late only if none of its copies landed in time."""
    stream = same_stream()
    is_followed_by_copy = (F.lead("event_time").over(stream) == F.col("event_time")) & (
        F.lead("id").over(stream) == F.col("id")
    )
    up_to_here = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    in_time = F.count(F.when(~F.col("late"), 1)).over(up_to_here)
    single = identified.withColumns(
        {"is_copy": F.coalesce(is_followed_by_copy, F.lit(False)), "in_time": in_time}
    ).where(~F.col("is_copy"))
    # As many as up to the heartbeat before: none of this one's.
    before = F.coalesce(F.lag("in_time").over(stream), F.lit(0))
    return single.withColumn("late", F.col("in_time") == before).drop("is_copy", "in_time")


def with_differences(single: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> DataFrame:
    """Each heartbeat of `[start, end)` beside the one before it, by `(event_time, id)`."""
    fields, length = plan.fields, plan.window_length
    before = {f"before_{name}": F.lag(name).over(same_stream()) for name in ("event_time", *fields)}
    event_us = F.unix_micros("event_time")
    gap_us = event_us - F.unix_micros("before_event_time")
    has_previous = gap_us <= F.lit(duration_us(plan.lookback))

    def previous(column: str) -> Column:
        return F.when(has_previous, F.col(f"before_{column}"))

    compared: list[Column] = []
    for name, kind in fields.items():
        value, earlier, comparison = compared_columns(name, kind)
        if kind is FieldKind.NUMBER:
            delta = F.col(name) - previous(name)
            outcome = F.when(F.abs(delta) < F.lit(float("inf")), delta)
        else:
            outcome = F.when(has_previous, ~F.col(name).eqNullSafe(previous(name)))
        compared += [F.col(name).alias(value), previous(name).alias(earlier), outcome.alias(comparison)]

    periods = F.floor(gap_us / F.lit(duration_us(plan.period)) + F.lit(0.5)).cast("bigint")
    # By its number among the range's, since writing a date for each row takes as long as comparing it.
    keys = F.array(*[F.lit(window.key) for window in Windowing(length, start).between(start, end)])
    number = F.floor((event_us - F.lit(to_us(start))) / F.lit(duration_us(length))).cast("int")
    with_previous = single.withColumns(before).select(
        "stream_id",
        "event_time",
        previous("event_time").alias("previous_event_time"),
        F.when(has_previous, gap_us / F.lit(SECONDS)).alias("gap_seconds"),
        F.when(has_previous, F.greatest(periods - 1, F.lit(0).cast("bigint"))).alias("missed_heartbeats"),
        *compared,
        "publish_time",
        "message_id",
        "late",
        F.get(keys, number).alias("window"),
    )
    return with_previous.where((F.col("event_time") >= moment(start)) & (F.col("event_time") < moment(end)))


def stream_status(diffs: DataFrame, heartbeats: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> DataFrame:
    """One row for each window of `[start, end)`, stream, and what is remarkable about it: the columns of STATUS.

    `diffs` is what `heartbeat_diffs` makes of the range; `heartbeats` holds at least
    `[start - lookback, start)`, copies do no harm. A row depends on `[its window's start - lookback, its end)` alone.
    """
    length_us, lookback_us = duration_us(plan.window_length), duration_us(plan.lookback)
    by_window = Window.partitionBy("stream_id").orderBy("start_us")
    groups = _beats_by_window(diffs, length_us).unionByName(
        _last_before(heartbeats, start, plan.lookback, length_us), allowMissingColumns=True
    )
    beside = groups.select(
        "*",
        F.lag("last_us").over(by_window).alias("before_us"),
        F.lead("start_us").over(by_window).alias("following_us"),
    )
    # None of them can be null inside the range: only the group before it has no first heartbeat.
    in_range = F.col("first_us").isNotNull()
    has_previous = F.coalesce(F.col("before_us") >= F.col("start_us") - F.lit(lookback_us), F.lit(False))
    there = {
        "last_us": F.when(has_previous, F.col("before_us")),
        "first_us": F.col("first_us"),
        "heartbeats": F.col("heartbeats"),
    }
    gaps = {name: F.col(name) for name in ("gaps", "missed_heartbeats", "longest_gap_seconds")}
    started = _row(F.col("start_us"), StatusKind.STARTED, **there)
    missed = _row(F.col("start_us"), StatusKind.MISSED, **there, **gaps)
    # The windows after this one, up to the stream's next heartbeat, whose lookback reaches this one's last.
    first = F.greatest(F.col("start_us") + F.lit(length_us), F.lit(to_us(start)))
    last = F.least(
        F.coalesce(F.col("following_us"), F.lit(to_us(end))) - F.lit(length_us),
        F.col("last_us") + F.lit(lookback_us),
        F.lit(to_us(end) - length_us),
    )
    stopped = F.when(
        first <= last,
        F.transform(
            F.sequence(first, last, F.lit(length_us)),
            lambda window_us: _row(window_us, StatusKind.STOPPED, last_us=F.col("last_us")),
        ),
    )
    found = F.concat(
        F.array_compact(
            F.array(F.when(in_range & ~has_previous, started), F.when(in_range & (F.col("gaps") > 0), missed))
        ),
        F.coalesce(stopped, F.array().cast(_ROWS)),
    )
    return beside.select("stream_id", F.explode(found).alias("row")).select(
        "stream_id",
        "row.kind",
        F.timestamp_micros("row.last_us").alias("last_event_time"),
        F.timestamp_micros("row.first_us").alias("first_event_time"),
        "row.heartbeats",
        "row.gaps",
        "row.missed_heartbeats",
        "row.longest_gap_seconds",
        F.date_format(F.timestamp_micros("row.window_us"), "yyyy-MM-dd'T'HH-mm'Z'").alias("window"),
    )


_FIELDS = {
    "window_us": "bigint",
    "kind": "string",
    "last_us": "bigint",
    "first_us": "bigint",
    "heartbeats": "bigint",
    "gaps": "bigint",
    "missed_heartbeats": "bigint",
    "longest_gap_seconds": "double",
}
_ROWS = f"array<struct<{','.join(f'{name}:{kind}' for name, kind in _FIELDS.items())}>>"


def _row(window_us: Column, kind: StatusKind, **values: Column) -> Column:
    given = {"window_us": window_us, "kind": F.lit(str(kind)), **values}
    return F.struct(*(given.get(name, F.lit(None)).cast(of_type).alias(name) for name, of_type in _FIELDS.items()))


def _beats_by_window(diffs: DataFrame, length_us: int) -> DataFrame:
    """One row for each stream and window in which it has a heartbeat."""
    event_us = F.unix_micros("event_time")
    return (
        diffs.select(
            "stream_id",
            event_us.alias("event_us"),
            (event_us - F.pmod(event_us, F.lit(length_us))).alias("start_us"),
            "missed_heartbeats",
            F.when(F.col("missed_heartbeats") > 0, F.col("gap_seconds")).alias("gap_seconds"),
        )
        .groupBy("stream_id", "start_us")
        .agg(
            F.min("event_us").alias("first_us"),
            F.max("event_us").alias("last_us"),
            F.count("*").alias("heartbeats"),
            F.count("gap_seconds").alias("gaps"),
            F.sum("missed_heartbeats").alias("missed_heartbeats"),
            F.max("gap_seconds").alias("longest_gap_seconds"),
        )
    )


def _last_before(heartbeats: DataFrame, start: datetime, lookback: timedelta, length_us: int) -> DataFrame:
    """One row for each stream with a heartbeat in the lookback before the range, in the window of its last."""
    before = (F.col("event_time") >= moment(start - lookback)) & (F.col("event_time") < moment(start))
    last = heartbeats.where(before).groupBy("stream_id").agg(F.max(F.unix_micros("event_time")).alias("last_us"))
    return last.withColumn("start_us", F.col("last_us") - F.pmod("last_us", F.lit(length_us)))
