"""The `quarantine` table: every rejected message whole, with the reason. Nothing is lost, and nothing is repaired."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.lake.tables.heartbeats import message_columns
from tidemark.pipeline.lake.tables.table import LakeTable, rows_of

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


class Quarantine(LakeTable):
    """The table of rejected messages."""

    def reasons(self) -> dict[str, int]:
        """How many distinct messages were rejected for each reason."""
        table = self.current()
        if table is None:
            return {}
        rows = table.to_pyarrow_table(columns=["reason", "message_id"]).group_by(["reason", "message_id"]).aggregate([])
        return {each["values"]: each["counts"] for each in pc.value_counts(rows["reason"]).to_pylist()}
