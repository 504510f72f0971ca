"""The `heartbeat_diffs` table: each heartbeat compared with the stream's previous one, one partition a window."""

from collections.abc import Mapping

import pyarrow as pa

from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.tables.heartbeats import ARROW_TYPES
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable


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


class HeartbeatDiffs(WindowedTable):
    """The table of diffs, with the columns of `diff_schema`."""
