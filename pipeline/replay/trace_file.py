"""A trace in a Parquet file, one row per message. A file that could be misread is refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.trace import BY_STREAM, NEVER, NO_EVENT_TIME, Batch, CohortKey
from tidemark.pipeline.version import refuse_newer
from tidemark.pipeline.watermark.histogram import Ints

TIMES = {"publish_time": NEVER, "event_time": NO_EVENT_TIME, "tracked_at": NEVER, "landed_at": NEVER}
"""The time columns, and the value that stands for null in each."""

COLUMNS = ("message_id", "stream_id", *TIMES)
ROWS = 1 << 16
"""Rows read at a time."""
READ_AHEAD_BYTES = 1 << 20
"""Bytes of each column read ahead, so that a row group is not read all at once."""
FIRST_MOMENT_US, LAST_MOMENT_US = -62_135_596_800_000_000, 253_370_764_800_000_000
"""The years 1 to 9998, which leave room for arithmetic."""


class ParquetTrace:
    """The messages of a Parquet file with the columns `COLUMNS`; other columns are ignored.

    Times are timestamps of any unit whose values are whole microseconds. If no column has a time zone, they are taken
    for UTC. A null event time means a rejected message; a null `tracked_at` or `landed_at` means never. The streams of
    its batches are the key's values: an attribute is read from `attributes`, a map of text, or from a column with its
    name.

    Raises TraceUnusable for any other file: it names the column, its content and the remedy. Raises NewerFormat for one
    marked by a later version of tidemark.
    """

    def __init__(self, path: Path, by: CohortKey = BY_STREAM) -> None:
        self.path, self._by = path, by
        with self._open() as file:
            schema = file.schema_arrow
            self.rows: int = file.metadata.num_rows
        refuse_newer(str(path), schema.metadata, "trace")
        self._named = by.column(schema.names)
        missing = [name for name in (*COLUMNS, self._named) if name not in schema.names]
        if missing:
            raise TraceUnusable(
                f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} (it has "
                f"{', '.join(schema.names) or 'none'}); a trace has one row per message, with {', '.join(COLUMNS)}"
            )
        kinds = {name: schema.field(name).type for name in TIMES}
        for name, kind in kinds.items():
            self._refuse_type(name, kind)
        zones = {name: kind.tz for name, kind in kinds.items() if pa.types.is_timestamp(kind)}
        zoneless = [name for name, zone in zones.items() if zone is None]
        if zoneless and len(zoneless) < len(zones):
            raise TraceUnusable(
                f"{path} has times with a time zone and times without one ({', '.join(zoneless)}); write all of them "
                f"as {MOMENT}"
            )
        self.is_taken_for_utc = bool(zoneless)
        self._refuse_names(schema.field(self._named).type)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Read all messages, in the file's order, at most `ROWS` at a time."""
        wanted = [*TIMES, self._named] if streams else list(TIMES)
        with self._open() as file:
            try:
                # The library's threads could outlive the interpreter and abort a command as it ends.
                for rows in file.iter_batches(batch_size=ROWS, columns=wanted, use_threads=False):
                    yield self._batch(rows, streams=streams)
            except (pa.ArrowException, OSError) as error:
                raise TraceUnusable(f"{self.path} cannot be read: {error}") from error

    def _open(self) -> pq.ParquetFile:
        try:
            # By default the library reads whole columns of the file ahead.
            return pq.ParquetFile(self.path, buffer_size=READ_AHEAD_BYTES, pre_buffer=False)
        except FileNotFoundError as error:
            raise TraceUnusable(f"{self.path} does not exist; name a Parquet file with one row per message") from error
        except (pa.ArrowException, OSError) as error:
            raise TraceUnusable(f"{self.path} cannot be read as a Parquet file: {error}") from error

    def _refuse_type(self, name: str, kind: pa.DataType) -> None:
        if pa.types.is_timestamp(kind) or (pa.types.is_null(kind) and name != "publish_time"):
            return
        why = "no unit and no zone" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "no exact moment"
        raise TraceUnusable(
            f"{name} in {self.path} is of the type {kind}, which is {why}; write it as {MOMENT} (in Arrow: "
            'pa.timestamp("us", tz="UTC"))'
        )

    def _refuse_names(self, kind: pa.DataType) -> None:
        if self._named == "attributes":
            if not (pa.types.is_map(kind) and kind.key_type == kind.item_type == pa.string()):
                raise TraceUnusable(f"attributes in {self.path} is of the type {kind}; write it as a map of text")
            return
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        readable = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
        if not (pa.types.is_null(plain) or any(is_readable(plain) for is_readable in readable)):
            raise TraceUnusable(f"{self._named} in {self.path} is of the type {kind}; write it as text")

    def _batch(self, rows: pa.RecordBatch, *, streams: bool) -> Batch:
        if unpublished := rows["publish_time"].null_count:
            raise TraceUnusable(
                f"publish_time in {self.path} is null in at least {unpublished} rows; every message has one, so leave "
                "out those rows or fill it in"
            )
        publish_us, event_us, tracked_us, landed_us = (self._times(name, rows[name]) for name in TIMES)
        known = self._by.values(rows[self._named]) if streams else None
        if known is not None and not pa.types.is_dictionary(known.type):
            known = known.dictionary_encode()
        return Batch(publish_us, event_us, tracked_us, landed_us, known)

    def _times(self, name: str, column: pa.Array) -> Ints:
        if pa.types.is_null(column.type):
            return np.full(len(column), TIMES[name], dtype=np.int64)
        try:
            present = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise TraceUnusable(
                f"{name} in {self.path} is of the type {column.type} and holds a time that is not a whole number of "
                f"microseconds, or is too far away ({error}); write it as {MOMENT}"
            ) from error
        least, most = (bound.as_py() for bound in pc.min_max(present).values())
        if least is not None and (least < FIRST_MOMENT_US or most > LAST_MOMENT_US):
            raise TraceUnusable(
                f"{name} in {self.path} holds a time outside the years 1 to 9998; check whether it was written in "
                "another unit than its type says"
            )
        times: Ints = present.fill_null(TIMES[name]).to_numpy(zero_copy_only=False)
        return times
