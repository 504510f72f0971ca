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
    read = heartbeats.where(F.col("event_time").between(_moment(start - lookback), _moment(end)))
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
    return with_previous.where((F.col("event_time") >= _moment(start)) & (F.col("event_time") < _moment(end)))


def silent_streams(
    heartbeats: DataFrame, *, start: datetime, end: datetime, lookback: timedelta, length: timedelta
) -> DataFrame:
    """`window, stream_id`: the streams that had a heartbeat in the lookback before a window and none in it.

    `heartbeats` as for `heartbeat_diffs`; copies do no harm.
    """
    length_us, lookback_us = us(length), us(lookback)
    same_stream = Window.partitionBy("stream_id").orderBy("event_time")
    event_us = F.unix_micros("event_time")
    following = F.coalesce(F.lead(event_us).over(same_stream), F.lit(to_us(end) + lookback_us))
    # The windows that begin after this heartbeat, within the lookback, and end before the stream's next one.
    first = F.greatest(event_us - F.pmod(event_us, F.lit(length_us)) + length_us, F.lit(to_us(start)))
    last = F.least(
        following - F.pmod(following, F.lit(length_us)) - length_us,
        event_us + lookback_us,
        F.lit(to_us(end) - length_us),
    )
    return (
        heartbeats.where(F.col("event_time").between(_moment(start - lookback), _moment(end)))
        .select("stream_id", first.alias("first"), last.alias("last"))
        .where(F.col("first") <= F.col("last"))
        .select("stream_id", F.explode(F.sequence("first", "last", F.lit(length_us))).alias("start_us"))
        .select(F.date_format(F.timestamp_micros("start_us"), "yyyy-MM-dd'T'HH-mm'Z'").alias("window"), "stream_id")
    )


def _moment(moment: datetime) -> Column:
    return F.timestamp_micros(F.lit(to_us(moment)).cast("bigint"))
