"""Compute the rows of heartbeat_diffs from heartbeats in Polars, by the rules in docs/how-to/reading.md."""

import polars as pl
from deltalake import DeltaTable

lake, length, lookback, period = "gs://my-bucket/lake", 300_000_000, 600_000_000, 30_000_000  # in microseconds
computed = [partition["window"] for partition in DeltaTable(f"{lake}/heartbeat_diffs").partitions()]
event_us, gap = pl.col("event_time").dt.epoch("us"), pl.col("gap")
copies = ["stream_id", "event_time", "id"]
before = ["previous_event_time", "previous_temperature", "previous_status"]

single = (
    pl.scan_delta(f"{lake}/heartbeats")
    .with_columns(id=pl.coalesce(pl.lit("p") + pl.col("publisher_id"), pl.lit("m") + pl.col("message_id")))
    .with_columns(late=pl.col("late").all().over(copies))
    .sort(*copies, "publish_time", "message_id")
    .unique(copies, keep="first", maintain_order=True)
)
paired = (
    single.with_columns(
        gap=event_us.diff().over("stream_id"),
        **{name: pl.col(name.removeprefix("previous_")).shift().over("stream_id") for name in before},
    )
    .with_columns(near=(gap <= lookback).fill_null(False))
    .with_columns(pl.when("near").then(pl.col(name)).alias(name) for name in ["gap", *before])
)
delta = pl.col("temperature") - pl.col("previous_temperature")
rows = (
    paired.select(
        "stream_id",
        "event_time",
        "previous_event_time",
        (gap / (gap * 0 + 1_000_000)).alias("gap_seconds"),  # by a constant, Polars multiplies with its inverse
        ((2 * gap + period) // (2 * period) - 1).clip(0).alias("missed_heartbeats"),
        "temperature",
        "previous_temperature",
        pl.when(delta.is_finite()).then(delta).alias("temperature_delta"),
        "status",
        "previous_status",
        pl.when("near").then(pl.col("status").ne_missing(pl.col("previous_status"))).alias("status_changed"),
        "publish_time",
        "message_id",
        "late",
        pl.from_epoch(event_us // length * length, "us").dt.strftime("%Y-%m-%dT%H-%MZ").alias("window"),
    )
    .filter(pl.col("window").is_in(computed))
    .collect()
)
