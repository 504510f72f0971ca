"""The `heartbeat_diffs` table: each heartbeat beside the one before it, one partition a window."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as pafs

from pipeline.clock import Clock
from pipeline.heartbeat import FieldKind, compared_columns
from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.heartbeats import ARROW_TYPES
from pipeline.lake.tables.table import MOMENT, LakeTable
from pipeline.lake.tables.windowed import (
    COMMIT_ATTEMPTS,
    MANIFESTS,
    PARTITION,
    RUNS_FOLDER,
    DiffRun,
    Fence,
    Replaced,
    WindowedTable,
)

__all__ = [
    "COMMIT_ATTEMPTS",
    "MANIFESTS",
    "PARTITION",
    "RUNS_FOLDER",
    "DiffRun",
    "Fence",
    "HeartbeatDiffs",
    "Replaced",
    "diff_schema",
]


def diff_schema(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """One row a heartbeat. `previous_...` are null where the stream's previous heartbeat is more than the lookback
    before; a delta is null where either value is; `..._changed` tells null from a value."""
    compared = []
    for name, kind in fields.items():
        value, previous, comparison = compared_columns(name, kind)
        outcome = pa.float64() if kind is FieldKind.NUMBER else pa.bool_()
        compared += [
            pa.field(value, ARROW_TYPES[kind]),
            pa.field(previous, ARROW_TYPES[kind]),
            pa.field(comparison, outcome),
        ]
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
    """The table of diffs. `files` is a file system whose root is the table's folder."""

    def __init__(
        self,
        table: LakeTable,
        objects: ObjectStore,
        files: pafs.FileSystem,
        fields: Mapping[str, FieldKind],
        clock: Clock,
    ) -> None:
        super().__init__(table, objects, files, diff_schema(fields), clock)
