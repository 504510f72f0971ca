"""Reads traces from a Parquet file, from a lake's landed messages or from a tracking log. Also reads the ticks that are
recorded in a tracking log."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.heartbeats import IDENTITY_SOURCE, PARTITION, Heartbeats, identities, messages_of
from tidemark.pipeline.lake.tables.quarantine import NO_IDS, without
from tidemark.pipeline.lake.tables.table import MOMENT, microseconds
from tidemark.pipeline.replay.trace import BY_STREAM, NEVER, NO_EVENT_TIME, Batch, CohortKey, Tick
from tidemark.pipeline.version import refuse_newer
from tidemark.pipeline.watermark.histogram import Histogram, Ints
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Entry, Released, Snapshot, WatermarkState

TIMES = {"publish_time": NEVER, "event_time": NO_EVENT_TIME, "tracked_at": NEVER, "landed_at": NEVER}
"""The time columns of a trace, each with the number that replaces null."""

COLUMNS = ("message_id", "stream_id", *TIMES)
ROWS = 1 << 16
"""Maximum number of rows per batch."""
READ_AHEAD_BYTES = 1 << 20
"""Number of bytes read ahead per column. It is small, so that a row group is not read as a whole."""
FIRST_MOMENT_US, LAST_MOMENT_US = -30_610_224_000_000_000, 221_845_392_000_000_000
"""The first and the last accepted time: the start of the years 1000 and 9000. Computing with such times cannot
overflow."""


class ParquetTrace:
    """A trace in a Parquet file, with the columns COLUMNS and one row per message. Other columns are ignored.

    Times are timestamps of any unit whose values are whole microseconds. If they have no time zone, they are in UTC. A
    null event time means that the message was rejected. A null `tracked_at` or `landed_at` means that the message was
    never acknowledged.

    `by` is a cohort key: in batches, its value is the stream of a message. If the key is an attribute, it is read
    from the column `attributes` (a map of text) or from a column with the attribute's name.

    After each batch is used, `tell` is called with the batch's number of rows, for a progress bar.

    Raises TraceUnusable for an unsuitable file. If a column is unsuitable, the error says why, and how to write it.
    Raises NewerFormat if a later version of tidemark wrote the file.
    """

    def __init__(self, path: Path, by: CohortKey = BY_STREAM) -> None:
        self.path, self._by = path, by
        self.tell: Callable[[int], object] = lambda _: None
        with self._open() as file:
            schema = file.schema_arrow
            self.rows: int = file.metadata.num_rows
        refuse_newer(str(path), schema.metadata, "trace")
        self._named = by.column(schema.names)
        occurrences = {name: schema.names.count(name) for name in (*COLUMNS, self._named)}
        if repeated := [name for name, times in occurrences.items() if times > 1]:
            raise TraceUnusable(f"{path} repeats the column {', '.join(repeated)}; keep one of each name")
        if missing := [name for name, times in occurrences.items() if not times]:
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
        """Yield all messages in the order of the file, in batches of at most ROWS. If `streams` is true, batches have
        the stream of each message."""
        wanted = [*TIMES, self._named] if streams else list(TIMES)
        with self._open() as file:
            try:
                # Without Arrow's threads, which could outlive the interpreter and abort a command as it ends.
                for rows in file.iter_batches(batch_size=ROWS, columns=wanted, use_threads=False):
                    yield self._batch(rows, streams=streams)
                    self.tell(len(rows))
            except (pa.ArrowException, OSError) as error:
                raise TraceUnusable(f"{self.path} cannot be read: {error}") from error

    def _open(self) -> pq.ParquetFile:
        try:
            # By default, Arrow reads whole columns of the file ahead.
            return pq.ParquetFile(self.path, buffer_size=READ_AHEAD_BYTES, pre_buffer=False)
        except FileNotFoundError as error:
            raise TraceUnusable(f"{self.path} does not exist; name a Parquet file with one row per message") from error
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise TraceUnusable(f"{self.path} cannot be read as a Parquet file: {error}") from error

    def _refuse_type(self, name: str, kind: pa.DataType) -> None:
        if pa.types.is_timestamp(kind) or (pa.types.is_null(kind) and name != "publish_time"):
            return
        why = "no unit and no zone" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "no exact time"
        raise TraceUnusable(
            f"the column {name} of {self.path} has the type {kind}, with {why}; write it as {MOMENT} (in Arrow: "
            'pa.timestamp("us", tz="UTC"))'
        )

    def _refuse_names(self, kind: pa.DataType) -> None:
        if self._named == "attributes":
            if not (pa.types.is_map(kind) and kind.key_type == kind.item_type == pa.string()):
                raise TraceUnusable(f"the column attributes of {self.path} has the type {kind}; write a map of text")
            return
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        readable = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
        if not (pa.types.is_null(plain) or any(is_readable(plain) for is_readable in readable)):
            raise TraceUnusable(f"the column {self._named} of {self.path} has the type {kind}; write it as text")

    def _batch(self, rows: pa.RecordBatch, *, streams: bool) -> Batch:
        if unpublished := rows["publish_time"].null_count:
            raise TraceUnusable(
                f"the column publish_time of {self.path} is null in at least {counted(unpublished, 'row')}; every "
                "message has a publish time, so leave out these rows or fill in the time"
            )
        publish_us, event_us, tracked_us, landed_us = (self._times(name, rows[name]) for name in TIMES)
        known = self._by.values(rows[self._named]).cast(pa.string()) if streams else None
        return Batch(publish_us, event_us, tracked_us, landed_us, known)

    def _times(self, name: str, column: pa.Array) -> Ints:
        if pa.types.is_null(column.type):
            return np.full(len(column), TIMES[name], dtype=np.int64)
        try:
            present = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise TraceUnusable(
                f"the column {name} of {self.path} has the type {column.type}, and a time in it is not a whole number "
                f"of microseconds, or is out of range ({error}); write the column as {MOMENT}"
            ) from error
        least, most = (bound.as_py() for bound in pc.min_max(present).values())
        if least is not None and (least < FIRST_MOMENT_US or most > LAST_MOMENT_US):
            raise TraceUnusable(
                f"the column {name} of {self.path} has a time outside the years 1000 to 8999; check whether the times "
                "were written in a different unit from that of the column's type"
            )
        times: Ints = present.fill_null(TIMES[name]).to_numpy(zero_copy_only=False)
        return times


def recorded_ticks(log: TrackingLog, since: datetime | None = None) -> tuple[WatermarkState, Iterator[Tick]]:
    """Return the state before the first recorded tick of a tracking log, and the ticks. Each decision in the log is a
    tick, with the entries since the previous decision.

    With `since`, the ticks begin after the newest compacted entry whose decision was made before `since`. Without
    `since` or such an entry, the ticks begin with the log. If the log's beginning was deleted, they begin after the
    first compacted entry. Entries after the last decision are ignored. Raises CorruptObject if an entry is damaged
    or missing.
    """
    if not (numbers := log.numbers()):
        return WatermarkState(), iter(())
    first = numbers[0] if since is None else _compacted_before(log, numbers, since)
    entries = read_ahead(log.listed_entry, range(first, numbers[-1] + 1))
    if first == 0:
        return WatermarkState(), _ticks(entries)
    for number, entry in entries:
        if isinstance(entry, Compacted):
            return WatermarkState().after(number, entry), _ticks(entries)
    return WatermarkState(), iter(())


def _ticks(entries: Iterator[tuple[int, Entry]]) -> Iterator[Tick]:
    before: list[Entry] = []
    for _, entry in entries:
        if not isinstance(entry, DecisionRecord):
            before.append(entry)
            continue
        yield Tick(entry.decision.at, tuple(before), entry.base, entry.tracking, recorded=entry)
        before = []


def _compacted_before(log: TrackingLog, numbers: list[int], since: datetime) -> int:
    for number, entry in read_ahead(log.entry, reversed(numbers)):
        if isinstance(entry, Compacted) and (decision := entry.state.decision) is not None and decision.at < since:
            return number
    return numbers[0]


class LogMessages:
    """A trace of the messages that a tracking log has counted, for a lake in which no messages land. It has no streams.

    The log has only histograms. Each message is therefore given the last publish time and the earliest event time of
    its histogram cell. Disorder is known to within two seconds, and lateness is never understated. A message counts as
    landed at the tick that tracked it, because the log does not record when it was acknowledged on the base
    subscription. A message that the tracking subscription delivered twice counts twice.
    """

    def __init__(self, ticks: Sequence[Tick], since: datetime) -> None:
        """Create a trace of the messages that were tracked at `since` or later."""
        self._ticks = [tick for tick in ticks if tick.at >= since]

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Yield all messages, one log entry per batch. The log has no streams: with `streams`, they are null."""
        for tick in self._ticks:
            for entry in tick.entries:
                if isinstance(entry, Snapshot):
                    yield _messages_of(entry.histogram, to_us(tick.at), streams=streams)


def _messages_of(cells: Histogram, tracked_us: int, *, streams: bool) -> Batch:
    publish_us, event_us = (np.repeat(column, cells.count) for column in (cells.last_publish_us, cells.min_event_us))
    tracked = np.full(len(publish_us), tracked_us, dtype=np.int64)
    unknown = pa.nulls(len(publish_us), pa.string()) if streams else None
    return Batch(publish_us, np.minimum(event_us, NO_EVENT_TIME), tracked, tracked, unknown)


class LakeLandings:
    """A trace of the messages that landed in a lake. Each message is in the trace once, with its first landing. If a
    heartbeat has copies, the trace has only the oldest. Each message is assumed to have been tracked when published.

    All messages are read from one version of the table, one partition at a time. A partition has all copies of its
    messages. Memory is proportional to the largest partition.
    """

    def __init__(
        self,
        heartbeats: Heartbeats,
        since: datetime | None = None,
        until: datetime | None = None,
        left_out: pa.Array = NO_IDS,
        by: CohortKey = BY_STREAM,
        released: Sequence[Released] = (),
    ) -> None:
        """Create a trace of the messages that landed from `since` to `until`, both included. Messages whose ids are in
        `left_out` are left out, and so are messages that landed after a release that covers them. `by` is a cohort key:
        in batches, its value is the stream of a message."""
        self._by, self._released, self._left_out = by, released, left_out
        self._heartbeats, self._table = heartbeats, heartbeats.in_place()
        self._since_us = np.iinfo(np.int64).min if since is None else to_us(since)
        self._until_us = NEVER if until is None else to_us(until)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """Yield all messages, one hour of event time per batch. `tracked_us` is the publish time, because the lake does
        not record when a message was tracked. If `streams` is true, batches have the stream of each message."""
        if self._table is None:
            return
        columns = ["message_id", "publish_time", "event_time", "landed_at"]
        named = self._by.column(["attributes"])
        least = [(name, "min") for name in (*columns[2:], *(["stream_id"] if streams else []))]
        chosen = list(dict.fromkeys([*columns, *IDENTITY_SOURCE, *([named] if streams else [])]))
        for hour in _hours_since(self._table, self._since_us):
            rows = self._heartbeats.rows(self._table, chosen, None, [hour])
            rows = rows.filter(_is_first(rows))
            if streams:
                rows = rows.select(columns).append_column("stream_id", self._by.values(rows[named]).cast(pa.string()))
            if len(self._left_out):  # an id is that of a message, or of one heartbeat in a message
                rows = without(rows, self._left_out)
                rows = rows.filter(pc.invert(pc.is_in(messages_of(rows["message_id"]), self._left_out)))
            # A redelivery has the same id and publish time. A restarted emulator gives old ids to new messages.
            first = rows.group_by(columns[:2], use_threads=False).aggregate(least)
            published_us, landed_us = microseconds(first["publish_time"]), microseconds(first["landed_at_min"])
            known = first["stream_id_min"].combine_chunks() if streams else None
            messages = Batch(published_us, microseconds(first["event_time_min"]), published_us, landed_us, known)
            counted = (landed_us >= self._since_us) & (landed_us <= self._until_us)
            for release in self._released:
                counted &= (published_us >= to_us(release.before)) | (landed_us <= to_us(release.at))
            yield messages.where(counted)


def _is_first(rows: pa.Table) -> pa.Array:
    """Return a mask that is true for one landed row of each heartbeat: that of its oldest copy. Of copies that were
    published at the same time, it is the one that landed first."""
    import polars as pl  # here, because `status` imports this module and does not need Polars

    named = identities(rows)
    order = ("publish_time", "landed_at", "message_id")
    copies = pl.DataFrame(pa.table([*named.columns, *rows.select(order).columns], [*named.column_names, *order]))
    first = pl.col("index").sort_by(*order).first().over(named.column_names)
    return copies.with_row_index().select(pl.col("index") == first).to_series().to_arrow()


def _hours_since(table: DeltaTable, since_us: int) -> list[str]:
    actions = pa.table(table.get_add_actions(flatten=True))
    if "max.landed_at" in actions.column_names:
        newest_us = actions["max.landed_at"].cast(MOMENT).cast(pa.int64())
        # A file without statistics may contain any message. The Delta library truncates statistics to milliseconds.
        may_hold = pc.greater(pc.add(newest_us, 1000), pa.scalar(since_us, pa.int64()))
        actions = actions.filter(pc.fill_null(may_hold, True))
    return sorted(set(actions[f"partition.{PARTITION}"].to_pylist()))
