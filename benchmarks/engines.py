"""The diffs of a table by DuckDB and by Polars: what `compute_windows` does, written as each engine likes it.

Both read the files that Spark is given, drop copies, compare each heartbeat with the one before, write Parquet by
window, and count and name the silent streams. They share no code with the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl

WINDOW_FORMAT = "%Y-%m-%dT%H-%MZ"
NAMED = 20
HEARTBEAT = ["stream_id", "event_time", "publisher_id", "message_id", "publish_time", "late", "temperature", "status"]
ORDER = ["stream_id", "event_time", "id", "publish_time", "message_id"]
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Work:
    """Which files, which event times (`[start, end)`), and what a diff depends on beside them."""

    files: Sequence[str]
    start: datetime
    end: datetime
    lookback: timedelta
    period: timedelta
    length: timedelta

    @property
    def parameters(self) -> dict[str, object]:
        """What the SQL is given."""
        micro = timedelta(microseconds=1)
        return {
            "files": list(self.files),
            "low": self.start - self.lookback,
            "start": self.start,
            "end": self.end,
            "lookback_us": self.lookback // micro,
            "period_us": self.period // micro,
            "length_us": self.length // micro,
        }


DIFFS = """
with identified as (
    select stream_id, event_time, coalesce('p' || publisher_id, 'm' || message_id) as id, message_id, publish_time,
        late, temperature, status
    from read_parquet($files, hive_partitioning = false) where event_time between $low and $end
), marked as (
    select *, bool_and(late) over (partition by stream_id, event_time, id) as late_all,
        lag(event_time) over same_stream is not distinct from event_time
            and lag(id) over same_stream is not distinct from id as is_copy
    from identified window same_stream as (
        partition by stream_id order by event_time, id, publish_time, message_id)
), paired as (
    select *, lag(event_time) over same_stream as before, lag(temperature) over same_stream as temperature_before,
        lag(status) over same_stream as status_before
    from marked where not is_copy window same_stream as (
        partition by stream_id order by event_time, id, publish_time, message_id)
), gaps as (
    select *, epoch_us(event_time) - epoch_us(before) as gap_us,
        coalesce(epoch_us(event_time) - epoch_us(before) <= $lookback_us, false) as has_previous
    from paired where event_time >= $start and event_time < $end
)
select stream_id, event_time, case when has_previous then before end as previous_event_time,
    case when has_previous then gap_us / 1e6 end as gap_seconds,
    case when has_previous then greatest(floor(gap_us / $period_us + 0.5)::bigint - 1, 0) end as missed_heartbeats,
    temperature, case when has_previous then temperature_before end as previous_temperature,
    case when has_previous then temperature - temperature_before end as temperature_delta,
    status, case when has_previous then status_before end as previous_status,
    case when has_previous then status is distinct from status_before end as status_changed,
    publish_time, message_id, late_all as late,
    strftime(make_timestamp(epoch_us(event_time) // $length_us * $length_us), '%Y-%m-%dT%H-%MZ') as "window"
from gaps
"""

SILENT = """
with followed as (
    select stream_id, epoch_us(event_time) as event_us, coalesce(
        lead(epoch_us(event_time)) over (partition by stream_id order by event_time), epoch_us($end) + $lookback_us
    ) as following
    from read_parquet($files, hive_partitioning = false) where event_time between $low and $end
), spans as (
    select stream_id, greatest(event_us - event_us % $length_us + $length_us, epoch_us($start)) as first,
        least(following - following % $length_us - $length_us, event_us + $lookback_us, epoch_us($end) - $length_us)
            as last
    from followed
), silent as (
    select distinct stream_id, unnest(range(first, last + 1, $length_us)) as start_us from spans where first <= last
)
select start_us, count(*), list_sort(list(stream_id))[1:20] from silent group by start_us order by start_us
"""


def by_duckdb(work: Work, out: Path) -> int:
    """Write the diffs below `out`; how many silent streams there were, by window, added up."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        partitioned = '(format parquet, compression zstd, partition_by ("window"))'
        connection.execute(f"copy ({DIFFS}) to '{out}' {partitioned}", work.parameters)
        silent = {key: value for key, value in work.parameters.items() if key != "period_us"}
        return sum(int(count) for _, count, _ in connection.execute(SILENT, silent).fetchall())


def by_polars(work: Work, out: Path) -> int:
    """Write the diffs below `out`; how many silent streams there were, by window, added up."""
    read = pl.scan_parquet(work.files, hive_partitioning=False).select(HEARTBEAT)
    read = read.filter(pl.col("event_time").is_between(work.start - work.lookback, work.end))
    identified = read.with_columns(
        id=pl.coalesce(pl.lit("p") + pl.col("publisher_id"), pl.lit("m") + pl.col("message_id"))
    ).sort(ORDER)
    same_stream = pl.col("stream_id") == pl.col("stream_id").shift()
    is_copy = (
        same_stream & (pl.col("event_time") == pl.col("event_time").shift()) & (pl.col("id") == pl.col("id").shift())
    )
    single = (
        identified.with_columns(is_copy=is_copy.fill_null(value=False))
        .with_columns(late=pl.col("late").all().over((~pl.col("is_copy")).cum_sum()))
        .filter(~pl.col("is_copy"))
    )
    gap = pl.col("event_time") - pl.col("event_time").shift()
    paired = single.with_columns(
        has_previous=(same_stream & (gap <= work.lookback)).fill_null(value=False),
        gap_us=gap.dt.total_microseconds(),
        before=pl.col("event_time").shift(),
        temperature_before=pl.col("temperature").shift(),
        status_before=pl.col("status").shift(),
    ).filter(pl.col("event_time").is_between(work.start, work.end, closed="left"))

    def if_paired(value: pl.Expr) -> pl.Expr:
        return pl.when(pl.col("has_previous")).then(value)

    periods = (pl.col("gap_us") / (work.period / timedelta(microseconds=1)) + 0.5).floor().cast(pl.Int64)
    diffs = paired.select(
        "stream_id",
        "event_time",
        if_paired(pl.col("before")).alias("previous_event_time"),
        if_paired(pl.col("gap_us") / SECOND_US).alias("gap_seconds"),
        if_paired(pl.max_horizontal(periods - 1, pl.lit(0))).alias("missed_heartbeats"),
        "temperature",
        if_paired(pl.col("temperature_before")).alias("previous_temperature"),
        if_paired(pl.col("temperature") - pl.col("temperature_before")).alias("temperature_delta"),
        "status",
        if_paired(pl.col("status_before")).alias("previous_status"),
        if_paired(pl.col("status").ne_missing(pl.col("status_before"))).alias("status_changed"),
        "publish_time",
        "message_id",
        "late",
        pl.col("event_time").dt.truncate(work.length).dt.strftime(WINDOW_FORMAT).alias("window"),
    )
    diffs.collect().write_parquet(out, compression="zstd", partition_by="window")
    return _silent(read, work)


def _silent(read: pl.LazyFrame, work: Work) -> int:
    """As in `SILENT`."""
    length, end = work.length, pl.lit(work.end)
    event = pl.col("event_time")
    following = pl.when(pl.col("stream_id") == pl.col("stream_id").shift(-1)).then(event.shift(-1))
    spans = (
        read.select("stream_id", "event_time")
        .sort("stream_id", "event_time")
        .with_columns(following=following.fill_null(end + work.lookback))
        .select(
            "stream_id",
            first=pl.max_horizontal(event.dt.truncate(length) + length, pl.lit(work.start)),
            last=pl.min_horizontal(
                pl.col("following").dt.truncate(length) - length, event + work.lookback, end - length
            ),
        )
        .filter(pl.col("first") <= pl.col("last"))
    )
    starts = pl.datetime_ranges("first", "last", interval=length)
    by_window = (
        spans.select("stream_id", starts.alias("start"))
        .explode("start")
        .unique()
        .group_by("start")
        .agg(pl.len().alias("count"), pl.col("stream_id").sort().head(NAMED))
        .collect()
    )
    return int(by_window["count"].sum())
