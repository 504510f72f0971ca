"""The `corrections` table: the rows that changed when windows were recomputed. It is for users who acted on the earlier
rows.

The table is append-only. Each commit also contains a Delta application transaction: the id of the recomputed table, and
the version up to which that table's changes are in `corrections`. So no change is recorded twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Transaction

from tidemark.pipeline.clock import Clock, to_us
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.errors import TableConflict
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, MOMENT, LakeTable, merged

PARTITION = "noticed_on"

FILE_BYTES = 16 << 20
"""Maximum size of a file's rows in memory, in bytes. A table of rows that exceeds this size gets its own file."""


class Change(StrEnum):
    """The kind of a row's change when its window was recomputed. UNKNOWN means that the changes of a window, or of
    several versions of a table, cannot be determined because files are gone or damaged."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    UNKNOWN = "unknown"


CORRECTIONS, CORRECTION_COLUMNS = described(
    [
        Column("table", pa.string(), "The table whose window was computed again.", False),
        Column("window", pa.string(), "The window's start; null if it is unknown which windows changed."),
        Column("change", pa.string(), f"The change of the row: {', '.join(Change)}.", False),
        Column("key", pa.string(), "The row's key, a JSON object."),
        Column("old_row", pa.string(), "The row before, a JSON object."),
        Column("new_row", pa.string(), "The row now, a JSON object."),
        Column("old_run", pa.string(), "The run that had computed the old row."),
        Column("new_run", pa.string(), "The run that computed the window again."),
        Column("old_heartbeats_version", pa.int64(), "The version of `heartbeats` that the old run read."),
        Column("new_heartbeats_version", pa.int64(), "The version of `heartbeats` that the new run read."),
        Column("corrected_at", MOMENT, "Time at which the window was replaced."),
        Column("table_version", pa.int64(), "The version of `table` that replaced the window.", False),
        Column("detail", pa.string(), "The reason why the change is unknown."),
        Column(PARTITION, pa.string(), "The partition: the day on which the change was noted.", False),
    ]
)
"""Schema of `corrections`, and the descriptions of its columns. The table has one row per changed row of a recomputed
window."""

CONTENT = pa.schema([column for column in CORRECTIONS if column.name != PARTITION])
"""The columns in a data file of `corrections`. Delta stores the partition column in the file's path instead."""

ORDER = [
    *((name, "descending", "at_start") for name in ("corrected_at", "table_version")),
    *((name, "ascending") for name in ("table", "window", "key", "change", "old_row", "new_row")),
]


@dataclass(frozen=True, slots=True)
class Position:
    """The version of a windowed table up to which its changes have been examined. `table_id` is Delta's id of the
    table, which changes if the table is recreated."""

    table_id: str
    version: int


FOLLOWED = JsonKind("corrections_followed/", holds=Position)
"""Stores the Position in each windowed table. The key is the table's name. A lost Position is derived again."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A filter for corrections, by their table, by their window, and by the time at which the window was replaced
    (`since` or later). A criterion that is None does not filter.

    If the time at which a window was replaced is unknown, `since` is compared with the day on which the change was
    noted."""

    table: str | None = None
    window: str | None = None
    since: datetime | None = None

    @property
    def filter(self) -> pc.Expression:
        """The filter as an Arrow expression. The expression accepts every correction whose `corrected_at` is null, so
        the caller must also restrict the days on which changes were noted."""
        condition = pc.scalar(True)
        for name in ("table", "window"):
            if (value := getattr(self, name)) is not None:
                condition &= pc.field(name) == value
        if self.since is not None:
            at = pc.field("corrected_at")
            condition &= (at >= pa.scalar(self.since, MOMENT)) | at.is_null()
        return condition


class Corrections:
    """The `corrections` table. Also stores the Position up to which each windowed table's changes are
    recorded."""

    def __init__(self, table: LakeTable, objects: ObjectStore, clock: Clock) -> None:
        self.table, self._files = table, NewFiles(table, clock)
        self.followed = Notes(objects, FOLLOWED)
        """The Position in each windowed table. The key is the table's name. A Position with a lower version than the
        result of `noted` is out of date."""

    def noted(self, table_id: str) -> int | None:
        """Return the version of the windowed table `table_id` up to which its changes are in `corrections`; None if no
        change of this table has been recorded. Raises LakeError."""
        table = self.table.in_place()  # the library reads the transaction's version from the log
        return None if table is None else table.transaction_version(table_id)

    def append(self, tables: Iterable[pa.Table], noticed_at: datetime, before: int | None, through: Position) -> int:
        """Append rows with the columns of CONTENT, and record in the same commit that the changes of a windowed table
        are complete up to the position `through`. Holds at most FILE_BYTES of rows in memory, plus one element of
        `tables`. Returns the number of rows; without rows, nothing is committed.

        `before` is the result of `noted` when the rows were determined. If several processes append changes from the
        same version, only one of them succeeds; the others raise TableConflict. Raises LakeError.

        After an error, no row is visible. Exception: if only the response to the commit was lost, or the sync after the
        commit failed, the rows are visible, and `noted` returns the new version.
        """
        day = noticed_at.strftime(DAY_FORMAT)
        written = [self._files.write_part(day, rows) for rows in merged(tables, FILE_BYTES) if len(rows)]
        if not written:
            return 0
        noted = [Transaction(through.table_id, through.version)]
        for _ in self.table.attempts():
            table = self.table.complete(CORRECTIONS)
            if self.noted(through.table_id) != before:
                raise TableConflict(f"another process has just recorded changes in {self.table.uri}; try again")
            with suppress(TableConflict):
                # Without retries: one by the library would succeed even after another follower's commit.
                self.table.transact(table, written, to_us(noticed_at), noted=noted)
                break
        return sum(file.rows for file in written)

    def newest(self, sought: Sought, limit: int) -> Sequence[dict[str, Any]]:
        """Return at most `limit` corrections that match the filter `sought`, the newest first, as dicts with the
        columns of CONTENT. Stops reading earlier days once it has `limit` corrections. Raises LakeError."""

        def of_day(day: str) -> Iterator[pa.Table]:
            return (rows.cast(CONTENT) for rows in self.table.scanned(CONTENT.names, sought.filter, [day]))

        return self.table.newest_by_day(sought.since, limit, of_day, ORDER)
