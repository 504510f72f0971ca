"""Which streams stopped, started or miss beats in a window, as DataFrame functions.

Every function is `DataFrame -> DataFrame` and takes no session. The session's time zone must be UTC.
"""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.lake.tables.stream_status import Kind
from tidemark.pipeline.spark.diffs import moment
from tidemark.pipeline.spark.plan import DiffPlan

DIFFS_READ = "stream_id string, event_time timestamp, gap_seconds double, missed_heartbeats bigint"
"""The columns of a run's diffs that are read."""


def stream_status(diffs: DataFrame, heartbeats: DataFrame, plan: DiffPlan, start: datetime, end: datetime) -> DataFrame:
    """One row for each window of `[start, end)`, stream, and what is remarkable about it: the columns of STATUS.

    `diffs` has the columns of DIFFS_READ and is what `heartbeat_diffs` makes of the range; `heartbeats` holds at least
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
    started = _row(F.col("start_us"), Kind.STARTED, **there)
    missed = _row(F.col("start_us"), Kind.MISSED, **there, **gaps)
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
            lambda window_us: _row(window_us, Kind.STOPPED, last_us=F.col("last_us")),
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


def _row(window_us: Column, kind: Kind, **values: Column) -> Column:
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
