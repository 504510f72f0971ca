"""Heartbeat diffs as DataFrame functions: one exchange and one sort serve deduplication and diffs alike.

Every function is `DataFrame -> DataFrame` and takes no session. The session's time zone must be UTC.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812

from pipeline.clock import to_us, us
from pipeline.heartbeat import FieldKind, compared_columns

SPARK_TYPES: Mapping[FieldKind, T.DataType] = {
    FieldKind.NUMBER: T.DoubleType(),
    FieldKind.TEXT: T.StringType(),
    FieldKind.BOOLEAN: T.BooleanType(),
    FieldKind.JSON: T.StringType(),
}

SECONDS = 1_000_000


def input_schema(fields: Mapping[str, FieldKind]) -> T.StructType:
    """The columns of `heartbeats` that diffs are made from; a field that a file lacks reads as null."""
    return T.StructType(
        [
            T.StructField("stream_id", T.StringType()),
            T.StructField("event_time", T.TimestampType()),
            T.StructField("publisher_id", T.StringType()),
            T.StructField("message_id", T.StringType()),
            T.StructField("publish_time", T.TimestampType()),
            T.StructField("late", T.BooleanType()),
            *(T.StructField(name, SPARK_TYPES[kind]) for name, kind in fields.items()),
        ]
    )


def heartbeat_diffs(
    heartbeats: DataFrame,
    fields: Mapping[str, FieldKind],
    *,
    start: datetime,
    end: datetime,
    lookback: timedelta,
    period: timedelta,
    window_length: timedelta,
) -> DataFrame:
    """The diffs of every heartbeat with an event time in `[start, end)`, sorted by stream within each partition.

    `heartbeats` has the columns of `input_schema` and holds at least `[start - lookback, end)`. A row depends on
    that interval alone, so any way of cutting a range into runs gives the same rows. `previous_...` is the stream's
    heartbeat before, at most `lookback` earlier; null if there is none.
    """
    read = heartbeats.where(F.col("event_time").between(moment(start - lookback), moment(end)))
    return with_differences(
        without_copies(read), fields, start=start, end=end, lookback=lookback, period=period, length=window_length
    )


def without_copies(heartbeats: DataFrame) -> DataFrame:
    """One row for each heartbeat: key `(stream_id, event_time, id)`, the copy with the smallest publish time.

    `id` is the publisher's where there is one, else the message's: a redelivery has the same message id, a
    retried publication the same publisher's id, and copies share stream and event time. A heartbeat is late only
    if none of its copies landed in time.
    """
    identified = heartbeats.withColumn(
        "id",
        F.when(F.col("publisher_id").isNotNull(), F.concat(F.lit("p"), "publisher_id")).otherwise(
            F.concat(F.lit("m"), "message_id")
        ),
    )
    same_stream = Window.partitionBy("stream_id").orderBy("event_time", "id", "publish_time", "message_id")
    copies = Window.partitionBy("stream_id", "event_time", "id")
    is_copy = (F.lag("event_time").over(same_stream) == F.col("event_time")) & (
        F.lag("id").over(same_stream) == F.col("id")
    )
    return (
        identified.withColumn("is_copy", F.coalesce(is_copy, F.lit(False)))
        .withColumn("late", F.min("late").over(copies))
        .where(~F.col("is_copy"))
        .drop("is_copy")
    )


def with_differences(
    heartbeats: DataFrame,
    fields: Mapping[str, FieldKind],
    *,
    start: datetime,
    end: datetime,
    lookback: timedelta,
    period: timedelta,
    length: timedelta,
) -> DataFrame:
    """Each heartbeat beside the one before it. Order within a stream: `(event_time, id, publish_time)`, the order
    that `without_copies` has sorted by, so that nothing is exchanged or sorted again."""
    same_stream = Window.partitionBy("stream_id").orderBy("event_time", "id", "publish_time", "message_id")
    before = {f"before_{name}": F.lag(name).over(same_stream) for name in ("event_time", *fields)}
    event_us = F.unix_micros("event_time")
    gap_us = event_us - F.unix_micros("before_event_time")
    has_previous = gap_us <= F.lit(us(lookback))

    def previous(column: str) -> Column:
        return F.when(has_previous, F.col(f"before_{column}"))

    compared: list[Column] = []
    for name, kind in fields.items():
        value, earlier, comparison = compared_columns(name, kind)
        if kind is FieldKind.NUMBER:
            outcome = F.col(name) - previous(name)
        else:
            outcome = F.when(has_previous, ~F.col(name).eqNullSafe(previous(name)))
        compared += [F.col(name).alias(value), previous(name).alias(earlier), outcome.alias(comparison)]

    periods = F.floor(gap_us / F.lit(us(period)) + F.lit(0.5)).cast("bigint")
    window_start = F.timestamp_micros(event_us - F.pmod(event_us, F.lit(us(length))))
    with_previous = heartbeats.withColumns(before).select(
        "stream_id",
        "event_time",
        previous("event_time").alias("previous_event_time"),
        F.when(has_previous, gap_us / F.lit(SECONDS)).alias("gap_seconds"),
        F.when(has_previous, F.greatest(periods - 1, F.lit(0).cast("bigint"))).alias("missed_heartbeats"),
        *compared,
        "publish_time",
        "message_id",
        "late",
        F.date_format(window_start, "yyyy-MM-dd'T'HH-mm'Z'").alias("window"),
    )
    return with_previous.where((F.col("event_time") >= moment(start)) & (F.col("event_time") < moment(end)))


def moment(at: datetime) -> Column:
    """A moment as a literal, exact."""
    return F.timestamp_micros(F.lit(to_us(at)).cast("bigint"))
