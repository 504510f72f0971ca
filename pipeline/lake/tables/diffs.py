"""The `heartbeat_diffs` table: each heartbeat compared with the stream's previous one, one partition per window."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.lake.tables.heartbeats import ARROW_TYPES, EVENT_TIME, STREAM_ID, value_of
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import PARTITION_COLUMN


def diff_schema(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """Return the columns of the table, one row per heartbeat."""
    return described(_columns(fields))[0]


def diff_columns(fields: Mapping[str, FieldKind]) -> dict[str, str]:
    """Return a description of each column of `diff_schema`."""
    return described(_columns(fields))[1]


def _columns(fields: Mapping[str, FieldKind]) -> Iterator[Column]:
    yield Column("stream_id", pa.string(), STREAM_ID)
    yield Column("event_time", MOMENT, EVENT_TIME)
    previous = "Event time of the stream's previous heartbeat; null if `windows.lookback` holds none."
    yield Column("previous_event_time", MOMENT, previous)
    gap = "Seconds from the previous heartbeat to this one; null without a previous one."
    yield Column("gap_seconds", pa.float64(), gap)
    missed = "Heartbeats that the gap missed, by `windows.heartbeat_period`; null without one."
    yield Column("missed_heartbeats", pa.int64(), missed)
    for name, kind in fields.items():
        value, previous, comparison = compared_columns(name, kind)
        yield Column(value, ARROW_TYPES[kind], value_of(name, kind))
        yield Column(previous, ARROW_TYPES[kind], f"`{name}` of the previous heartbeat.")
        if kind is FieldKind.NUMBER:
            delta = f"`{name}` less `{previous}`; null if either is, or if it is beyond a double."
            yield Column(comparison, pa.float64(), delta)
        else:
            differ = f"True if `{name}` and `{previous}` differ, where null is a value as well; null without a previous"
            yield Column(comparison, pa.bool_(), f"{differ} heartbeat.")
    yield Column("publish_time", MOMENT, "Publish time of the heartbeat's earliest copy.")
    yield Column("message_id", pa.string(), "Pub/Sub's id of that copy.")
    yield Column("late", pa.bool_(), "True if no copy of it landed in time.")
    yield PARTITION_COLUMN
