"""The `stream_status` table: the streams that stopped, started or missed heartbeats, by window. Other streams have no
row.

A window's rows depend only on the event times `[start - lookback, end)`, and are replaced together with its diffs.
"""

from collections.abc import Collection
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import PARTITION, PARTITION_COLUMN, WindowedTable


class StatusKind(StrEnum):
    """A reported change of a stream in a window. STOPPED: its last heartbeat is in the lookback before the window.
    STARTED, new or back: it has a heartbeat in the window and none in the lookback. MISSED: a gap that is long enough
    for missed heartbeats ends in the window."""

    STOPPED = "stopped"
    STARTED = "started"
    MISSED = "missed"


STATUS, STATUS_COLUMNS = described(
    [
        Column("stream_id", pa.string(), "The stream."),
        Column("kind", pa.string(), f"Its state in the window: {', '.join(StatusKind)}."),
        Column("last_event_time", MOMENT, "Its last heartbeat before the window; null if the lookback has none."),
        Column("first_event_time", MOMENT, "Its first heartbeat in the window."),
        Column("heartbeats", pa.int64(), "Heartbeats in the window."),
        Column("gaps", pa.int64(), "Gaps with missed heartbeats that end in the window."),
        Column("missed_heartbeats", pa.int64(), "Heartbeats missed in these gaps, as in `heartbeat_diffs`."),
        Column("longest_gap_seconds", pa.float64(), "The longest of these gaps, in seconds."),
        PARTITION_COLUMN,
    ]
)
"""The columns of the table, one row per window, stream and kind."""


class StreamStatus(WindowedTable):
    """The `stream_status` table, with the columns of STATUS."""

    def rows(self, windows: Collection[str], kind: StatusKind | None = None) -> pa.Table:
        """Return the rows of these windows, sorted by window, kind and stream. Raises LakeError."""
        found = self.read(windows, None if kind is None else pc.field("kind") == str(kind))
        return found.sort_by([(name, "ascending") for name in (PARTITION, "kind", "stream_id")])

    def behind(self, diffs: WindowedTable, windows: Collection[str]) -> list[str]:
        """Return the computed windows among these whose status is missing, or was computed from older input than their
        diffs.

        A run that ends between its two commits leaves a newer status, and its next attempt updates the diffs. A version
        of tidemark without this table leaves no status, and two concurrent runs may leave an older one if one of them
        ends early.
        """
        ours, theirs = self.runs(windows), diffs.runs(windows)
        return sorted(
            key
            for key, run in theirs.items()
            if ours.get(key) != run and (key not in ours or self._version(ours[key]) < self._version(run))
        )

    def _version(self, run: str) -> int:
        version = self.input_version(run)
        return -1 if version is None else version
