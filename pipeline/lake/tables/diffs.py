"""The tables `heartbeat_diffs` and `stream_status`. Both have one partition per event-time window, and a run replaces
the rows of its windows in both.

`heartbeat_diffs` compares each heartbeat with the previous heartbeat of its stream. `stream_status` lists the streams
that stopped, started or missed heartbeats. A window's rows depend only on heartbeats with an event time in `[start -
lookback, end)`.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.lake.tables.heartbeats import ARROW_TYPES, EVENT_TIME, STREAM_ID, value_of
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import PARTITION, PARTITION_COLUMN, WindowedTable


def diff_schema(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """Return the schema of `heartbeat_diffs`, which has one row per heartbeat. `fields` are the compared fields."""
    return described(diff_columns(fields))[0]


def diff_columns(fields: Mapping[str, FieldKind]) -> Iterator[Column]:
    """Yield the columns of `heartbeat_diffs`. `fields` are the compared fields."""
    yield Column("stream_id", pa.string(), STREAM_ID)
    yield Column("event_time", MOMENT, EVENT_TIME)
    previous = "Event time of the stream's previous heartbeat; null if there is none within `windows.lookback`."
    yield Column("previous_event_time", MOMENT, previous)
    gap = "Seconds from the previous heartbeat to this one; null without a previous one."
    yield Column("gap_seconds", pa.float64(), gap)
    missed = "Heartbeats missing in the gap, by `windows.heartbeat_period`; null without a gap."
    yield Column("missed_heartbeats", pa.int64(), missed)
    for name, kind in fields.items():
        value, previous, comparison = compared_columns(name, kind)
        yield Column(value, ARROW_TYPES[kind], value_of(name, kind))
        yield Column(previous, ARROW_TYPES[kind], f"`{name}` of the previous heartbeat.")
        if kind is FieldKind.NUMBER:
            delta = f"`{name}` minus `{previous}`; null if either is null, or if the result is not a finite double."
            yield Column(comparison, pa.float64(), delta)
        else:
            differ = f"True if `{name}` and `{previous}` differ, where null counts as a value; null without a previous"
            yield Column(comparison, pa.bool_(), f"{differ} heartbeat.")
    yield Column("publish_time", MOMENT, "Publish time of the heartbeat's earliest copy.")
    yield Column("message_id", pa.string(), "Pub/Sub's id of the heartbeat's earliest copy.")
    yield Column("late", pa.bool_(), "True if no copy of the heartbeat landed in time.")
    yield PARTITION_COLUMN


class StatusKind(StrEnum):
    """The state of a stream in a window, as reported in `stream_status`.

    - STOPPED: the stream has heartbeats in the lookback before the window, but none in the window.
    - STARTED: the stream has heartbeats in the window, but none in the lookback before it.
    - MISSED: a gap ends in the window, and the stream skipped at least one heartbeat in that gap. One heartbeat
      is expected per `windows.heartbeat_period`.
    """

    STOPPED = "stopped"
    STARTED = "started"
    MISSED = "missed"


STATUS, STATUS_COLUMNS = described(
    [
        Column("stream_id", pa.string(), "The stream."),
        Column("kind", pa.string(), f"The state of the stream in the window: {', '.join(StatusKind)}."),
        Column("last_event_time", MOMENT, "Last heartbeat before the window; null if the lookback has none."),
        Column("first_event_time", MOMENT, "First heartbeat in the window."),
        Column("heartbeats", pa.int64(), "Heartbeats in the window."),
        Column("gaps", pa.int64(), "Gaps with missed heartbeats that end in the window."),
        Column("missed_heartbeats", pa.int64(), "Heartbeats missed in these gaps, as in `heartbeat_diffs`."),
        Column("longest_gap_seconds", pa.float64(), "The longest of these gaps, in seconds."),
        PARTITION_COLUMN,
    ]
)
"""Schema of `stream_status`, and the descriptions of its columns. The table has one row per window, stream and kind."""


class StreamStatus(WindowedTable):
    """The `stream_status` table. `behind` finds the windows for which the table is out of date."""

    def rows(self, windows: Collection[str], kind: StatusKind | None = None) -> pa.Table:
        """Return the rows of these windows, sorted by window, kind and stream. If `kind` is given, return only rows of
        this kind. Raises LakeError."""
        found = self.read(windows, None if kind is None else pc.field("kind") == str(kind))
        return found.sort_by([(name, "ascending") for name in (PARTITION, "kind", "stream_id")])

    def behind(self, diffs: WindowedTable, windows: Collection[str]) -> list[str]:
        """Return the windows whose rows in `stream_status` are missing, or older than those in `heartbeat_diffs`.
        `windows` are the keys of the windows to check.

        - Rows are missing if a version of tidemark without `stream_status` computed the diffs.
        - Rows are older after two concurrent runs of the window: the run with older input committed the status, and the
          other run committed the diffs, but died before it could compute the window again.
        - Newer rows are not reported: their run died between its two commits, and its retry will replace the diffs.
        """
        ours, theirs = self.runs(windows), diffs.runs(windows)
        return sorted(
            key
            for key, run in theirs.items()
            if ours.get(key) != run and (key not in ours or self._version(ours[key]) < self._version(run))
        )
