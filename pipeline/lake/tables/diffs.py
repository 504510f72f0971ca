"""The `heartbeat_diffs` table: each heartbeat compared with the stream's previous one, one partition a window."""

from collections.abc import Mapping

import pyarrow as pa

from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.tables.heartbeats import ARROW_TYPES, IDENTITY_COLUMNS, value_of
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import PARTITION, PARTITION_COLUMN


def diff_schema(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """One row a heartbeat. `previous_...` are null if the lookback holds no earlier heartbeat of the stream. A delta is
    null if either value is, or if it is beyond a double; `..._changed` counts null as a value of its own."""
    compared = []
    for name, kind in fields.items():
        value, previous, comparison = compared_columns(name, kind)
        outcome = pa.float64() if kind is FieldKind.NUMBER else pa.bool_()
        compared += [(value, ARROW_TYPES[kind]), (previous, ARROW_TYPES[kind]), (comparison, outcome)]
    return pa.schema(
        [
            pa.field("stream_id", pa.string()),
            pa.field("event_time", MOMENT),
            pa.field("previous_event_time", MOMENT),
            pa.field("gap_seconds", pa.float64()),
            pa.field("missed_heartbeats", pa.int64()),
            *compared,
            pa.field("publish_time", MOMENT),
            pa.field("message_id", pa.string()),
            pa.field("late", pa.bool_()),
            pa.field(PARTITION, pa.string()),
        ]
    )


def diff_columns(fields: Mapping[str, FieldKind]) -> dict[str, str]:
    """A text for each column of `diff_schema`."""
    compared = dict[str, str]()
    for name, kind in fields.items():
        value, previous, comparison = compared_columns(name, kind)
        compared[value] = value_of(name, kind)
        compared[previous] = f"`{name}` of the previous heartbeat."
        if kind is FieldKind.NUMBER:
            compared[comparison] = f"`{name}` less `{previous}`; null if either is, or if it is beyond a double."
        else:
            compared[comparison] = (
                f"Whether `{name}` and `{previous}` differ, where null is a value of its own; null without a previous "
                "heartbeat."
            )
    return {
        **IDENTITY_COLUMNS,
        "previous_event_time": "Event time of the stream's previous heartbeat; null if `windows.lookback` holds none.",
        "gap_seconds": "Seconds from the previous heartbeat to this one; null without a previous one.",
        "missed_heartbeats": "How many the gap missed, by `windows.heartbeat_period`; null without a previous one.",
        **compared,
        "publish_time": "When Pub/Sub received it: the copy with the smallest publish time.",
        "message_id": "Pub/Sub's id of that copy.",
        "late": "Whether no copy of it landed in time.",
        **PARTITION_COLUMN,
    }
