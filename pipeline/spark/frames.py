"""Landed heartbeats as DataFrames: their columns, and one row for each heartbeat however many copies landed.

Every function takes no session. The session's time zone must be UTC.
"""

from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import to_us


def spark_schema(columns: Iterable[pa.Field]) -> T.StructType:
    """Arrow's columns as Spark's. Each may be null: Spark may not rely on what it reads from files."""
    return from_arrow_schema(pa.schema([column.with_nullable(True) for column in columns]))


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


def moment(at: datetime) -> Column:
    """A moment as a literal, exact."""
    return F.timestamp_micros(F.lit(to_us(at)).cast("bigint"))
