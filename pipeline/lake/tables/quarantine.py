"""The `quarantine` table: every rejected message whole, with the reason. Nothing is lost, and nothing is repaired."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.tables.heartbeats import message_columns
from pipeline.lake.tables.table import LakeTable, rows_of

PARTITION = "rejected_on"
DAY_FORMAT = "%Y-%m-%d"

QUARANTINE = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        *message_columns(),
        pa.field(PARTITION, pa.string(), nullable=False),
    ]
)
"""One row a landing of a rejected message: one that was delivered twice stands twice, with one `message_id`."""


def quarantine_rows(columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.Table:
    """Rejected messages as `Quarantine.append` takes them: values for each column of the schema but the partition."""
    rows = rows_of(columns, QUARANTINE)
    days = pc.strftime(rows["landed_at"], format=DAY_FORMAT)
    return rows.append_column(pa.field(PARTITION, pa.string(), nullable=False), days)


class Quarantine:
    """The table of rejected messages."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table

    def append(self, rows: pa.Table) -> None:
        """Keep messages, in the table's schema. Durable on return."""
        self._table.append(rows)

    def published_between(self, start: datetime, end: datetime) -> pa.Table | None:
        """Message id and publish time of each landing that was published in `[start, end)`, in whole seconds."""
        return self._table.rows_between("publish_time", start, end, ("message_id", "publish_time"))

    def reasons(self) -> dict[str, int]:
        """How many distinct messages were rejected for each reason."""
        table = self._table.current()
        if table is None:
            return {}
        rows = table.to_pyarrow_table(columns=["reason", "message_id"]).group_by(["reason", "message_id"]).aggregate([])
        counts = rows.group_by("reason").aggregate([("message_id", "count")])
        return dict(zip(counts["reason"].to_pylist(), counts["message_id_count"].to_pylist(), strict=True))
