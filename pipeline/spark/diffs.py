"""Heartbeat diffs as DataFrame functions: one exchange and one sort serve deduplication and diffs alike.

Every function is `DataFrame -> DataFrame` and takes no session. The session's time zone must be UTC.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.tables.heartbeats import columns_read
from tidemark.pipeline.spark.plan import DiffPlan
from tidemark.pipeline.windows import Windowing

SECONDS = 1_000_000


def spark_schema(columns: Iterable[pa.Field]) -> T.StructType:
    """Arrow's columns as Spark's. Each may be null: Spark may not rely on what it reads from files."""
    return from_arrow_schema(pa.schema([column.with_nullable(True) for column in columns]))


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


def _same_stream() -> WindowSpec:
    """One for all, so that rows are exchanged and sorted once. The copies of a heartbeat stand together."""
    return Window.partitionBy("stream_hash", "stream_id").orderBy(
        "event_time", "id", F.desc("publish_time"), F.desc("message_id")
    )


def without_copies(identified: DataFrame) -> DataFrame:
    """One row for each heartbeat: key `(stream_id, event_time, id)`, the copy with the smallest publish time, which is
    the last in order. A heartbeat is late only if none of its copies landed in time."""
    stream = _same_stream()
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
    before = {f"before_{name}": F.lag(name).over(_same_stream()) for name in ("event_time", *fields)}
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


def moment(at: datetime) -> Column:
    """A moment as a literal, exact."""
    return F.timestamp_micros(F.lit(to_us(at)).cast("bigint"))
