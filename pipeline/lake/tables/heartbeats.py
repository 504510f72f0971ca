"""The `heartbeats` table. It has every landed message in full, and the message's compared fields as columns.

A message may land more than once, because Pub/Sub redelivers. The computation of windows drops the copies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.contract.messages import MESSAGE_COLUMNS, MOMENT, Column, described
from tidemark.pipeline.contract.places import ELEMENT
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.tables.table import CUT, DataFile, LakeTable, as_data_files, rows_of
from tidemark.pipeline.settings_sections import LakeSettings

PARTITION = "event_hour"
HOUR_FORMAT = "%Y-%m-%dT%HZ"
HOUR = timedelta(hours=1)

ARROW_TYPES: Mapping[FieldKind, pa.DataType] = {
    FieldKind.NUMBER: pa.float64(),
    FieldKind.TEXT: pa.string(),
    FieldKind.BOOLEAN: pa.bool_(),
    FieldKind.JSON: pa.string(),
}

IDENTITY = ("stream_id", "event_time", "id")
"""The columns that identify a heartbeat: all its copies have the same values in them. `id` is `p` followed by the
publisher's id or, if there is none, `m` followed by the message id. `tidemark.pipeline.compute.columns` derives `id`
in the same way, as a Polars expression."""

IDENTITY_SOURCE = ("stream_id", "event_time", "publisher_id", "message_id")
"""The columns of `heartbeats` from which the columns of IDENTITY are derived."""


STREAM_ID, EVENT_TIME = "The stream that sent the heartbeat.", "Time of the event at the source."
"""Descriptions of the columns `stream_id` and `event_time`. All tables with one row per heartbeat use them."""


def message_columns() -> list[Column]:
    """Return the columns that `heartbeats` and `quarantine` share: the full message, and when it landed."""
    return [*MESSAGE_COLUMNS, Column("landed_at", MOMENT, "Time at which the row was written.", False)]


def heartbeat_schema(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """Return the schema of `heartbeats`: one row per landed copy of a heartbeat. `fields` are the compared fields."""
    return described(heartbeat_columns(fields))[0]


def heartbeat_columns(fields: Mapping[str, FieldKind]) -> Iterator[Column]:
    """Yield the columns of `heartbeats`. `fields` are the compared fields."""
    yield Column("stream_id", pa.string(), STREAM_ID, False)
    yield Column("event_time", MOMENT, EVENT_TIME, False)
    yield Column("publisher_id", pa.string(), "The id that the publisher set, if any. Copies share it.")
    yield from message_columns()
    yield Column("late", pa.bool_(), "True if the event time was below the watermark when the message landed.", False)
    yield from (Column(name, ARROW_TYPES[kind], value_of(name, kind)) for name, kind in fields.items())
    yield Column(PARTITION, pa.string(), "The partition: the hour of the event time.", False)


def value_of(name: str, kind: FieldKind) -> str:
    """Return the description of the column for the compared field `name`."""
    return f"The {kind} `{name}` of `[message.fields]`; null if the field is absent or of another kind."


def columns_read(fields: Mapping[str, FieldKind]) -> pa.Schema:
    """Return the columns of `heartbeats` that the computation of windows reads."""
    names = ("stream_id", "event_time", "publisher_id", "message_id", "publish_time", "late", *fields)
    return pa.schema(map(heartbeat_schema(fields).field, names))


def heartbeat_rows(columns: Mapping[str, Sequence[Any] | pa.Array], fields: Mapping[str, FieldKind]) -> pa.Table:
    """Return landed messages as rows of `heartbeats`. `columns` contains the values of each column except the partition
    column, which is derived from the event times."""
    rows = rows_of(columns, heartbeat_schema(fields))
    return rows.append_column(pa.field(PARTITION, pa.string(), nullable=False), _hours(rows["event_time"]))


@dataclass(frozen=True, slots=True)
class HeartbeatFiles:
    """The files that a computation of windows reads, all from one version of `heartbeats`. `place` is the common prefix
    of the files' addresses."""

    version: int
    files: Sequence[DataFile]
    place: str

    @property
    def paths(self) -> list[str]:
        return [self.place + file.path for file in self.files]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def between(self, start: datetime, end: datetime) -> "HeartbeatFiles":
        """Return only the files that may contain event times in `[start, end]`."""
        return replace(self, files=[file for file in self.files if file.may_have(start, end)])

    def rows_before(self, moments: Sequence[datetime]) -> npt.NDArray[np.float64]:
        """Estimate, for each of `moments`, how many rows have an earlier event time. `moments` must be in ascending
        order.

        The rows of a file are assumed to be spread evenly over the file's range of event times. A file without
        statistics is assumed to span the range from the first to the last moment.
        """
        first, last = moments[0], moments[-1]
        at = np.array([to_us(moment) for moment in moments], dtype=np.int64)
        before = np.zeros(len(at))
        for file in self.files:  # one by one: a year of windows times a year of files would not fit in memory
            oldest_us, newest_us = to_us(file.oldest or first), to_us(file.newest or last)
            before += np.clip((at - oldest_us) / max(newest_us - oldest_us, 1), 0, 1) * file.rows
        return before


@dataclass(frozen=True, slots=True)
class LandedExtent:
    """The number of rows in `heartbeats`, and the bounds of their event times. The bounds are None without
    statistics."""

    rows: int = 0
    oldest_event_time: datetime | None = None
    newest_event_time: datetime | None = None


class Heartbeats(LakeTable):
    """The `heartbeats` table. Before a write, it checks that the stored columns of the compared fields have the types
    that the settings require."""

    def __init__(self, lake: LakeSettings, name: str, fields: Mapping[str, FieldKind], kept_bytes: int = 0) -> None:
        super().__init__(lake, name, PARTITION, kept_bytes)
        self.fields = fields
        self.schema = heartbeat_schema(fields)
        self._checked: DeltaTable | None = None

    def check(self) -> None:
        is_checked = self._table is not None and self._table is self._checked  # not reopened since the last check
        if is_checked or (table := self.current()) is None:
            return
        there = {column.name: pa.field(column) for column in table.schema().fields}
        for name, kind in self.fields.items():
            if name in there and there[name].type != ARROW_TYPES[kind]:
                raise InvalidSettings(
                    f"message.fields.{name} = {str(kind)!r}, but the column {name} of {self.uri} has the type "
                    f"{there[name].type}; give the field another name, or restore its kind"
                )
        self._checked = table if self.fields.keys() <= there.keys() else None  # another process may add a column

    def landed_of(self, message_ids: pa.Array, start: datetime, end: datetime) -> pa.Array:
        """Return those of `message_ids` that are in the table with a publish time in `[start, end)`. An id is returned
        once per row. Opens only files that may contain such publish times. Memory is proportional to the result."""
        published, partitions = self.published_in(start, end)
        found = self.scanned(["message_id"], published & pc.field("message_id").isin(message_ids), partitions)
        return pa.concat_arrays([pa.nulls(0, pa.string()), *(rows["message_id"].combine_chunks() for rows in found)])

    def files_between(self, start: datetime, end: datetime) -> HeartbeatFiles:
        """Return the files of the newest version that may contain event times in `[start, end]` according to the files'
        statistics."""
        table = self.current()
        files, version = self.listed(table), -1 if table is None else table.version()
        # Like DataFile.may_have, vectorized for thousands of files. A file without statistics may contain any time.
        begins = pc.fill_null(pc.less_equal(files["oldest"], pa.scalar(end, MOMENT)), True)
        reaches = pc.fill_null(pc.greater_equal(files["newest"], pa.scalar(start, MOMENT)), True)
        found = as_data_files(files.filter(pc.and_(begins, reaches)), PARTITION)
        return HeartbeatFiles(version, found, f"{self.uri}/")

    def extent(self) -> LandedExtent:
        """Return the number of rows in the newest version, and the bounds of their event times."""
        files = self.listed()
        oldest, newest = pc.min(files["oldest"]).as_py(), pc.max(files["newest"]).as_py()
        return LandedExtent(pc.sum(files["num_records"]).as_py() or 0, oldest, newest and newest - CUT)


def messages_of(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the Pub/Sub message id for each value of the column `message_id`. If a message contains several
    heartbeats, the column has the message's id with the number of the heartbeat appended."""
    if not pc.any(pc.match_substring(ids, ELEMENT)).as_py():
        return ids
    return pc.list_element(pc.split_pattern(ids, ELEMENT, max_splits=1, reverse=True), 0)


def identities(rows: pa.Table) -> pa.Table:
    """Return the columns of IDENTITY for rows that have the columns of IDENTITY_SOURCE, in the order of the rows."""
    publisher = pc.binary_join_element_wise("p", rows["publisher_id"], "")
    message = pc.binary_join_element_wise("m", rows["message_id"], "")
    ids = pc.coalesce(publisher, message).cast(pa.string())
    return pa.table([rows["stream_id"].cast(pa.string()), rows["event_time"].cast(MOMENT), ids], list(IDENTITY))


def _hours(event_times: pa.ChunkedArray) -> pa.ChunkedArray:
    if not len(event_times):  # an empty array has no dictionary
        return event_times.cast(pa.string())
    hours = pc.floor_temporal(event_times, unit="hour").dictionary_encode().unify_dictionaries().combine_chunks()
    return pc.strftime(hours.dictionary, format=HOUR_FORMAT).take(hours.indices)


def range_of(file: DataFile) -> tuple[datetime, datetime]:
    """Return the first and the last event time that a file of `heartbeats` may contain. If the file has no statistics,
    return the start and the end of its partition's hour."""
    hour = datetime.strptime(file.partition, HOUR_FORMAT).replace(tzinfo=UTC)
    return file.oldest or hour, file.newest or hour + HOUR
