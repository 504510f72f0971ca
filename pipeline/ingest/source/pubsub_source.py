"""Pub/Sub as a PySpark data source, `format("pubsub")`, for streams and for batch reads. It delivers at least once.

In `read`, a reader pulls messages, lands them under a name derived from the end offset of the batch, and then
acknowledges them. If a task is retried, or a query restarts from its checkpoint, the reader returns the rows that
have landed and pulls nothing.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from google.pubsub_v1 import SubscriberClient
from pyspark.sql import types as T  # noqa: N812 (what everybody calls it)
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemark.pipeline.clock import Clock, SystemClock, from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, HeartbeatReader
from tidemark.pipeline.errors import ExecutorsUnable, InvalidSettings, PubSubError
from tidemark.pipeline.ingest.source.named import land_named
from tidemark.pipeline.ingest.source.pubsub_options import WATERMARK, SourceOptions, read_options
from tidemark.pipeline.ingest.take import Batches, Budget
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.landings import FOLDER, MANIFEST, PIECE, LandedBatches
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.tables.heartbeats import ARROW_TYPES, PARTITION, heartbeat_schema
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.pubsub.backlog import Backlog, ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, lease_of
from tidemark.pipeline.spark.executor_archive import ARCHIVES
from tidemark.pipeline.spark.executor_archive import FOLDER as ENVIRONMENT
from tidemark.pipeline.spark.frames import arrow_schema, spark_schema
from tidemark.pipeline.version import marks, refuse_newer, without_marks

ROWS_PER_ARROW_BATCH = 10_000
CLIENTS = Kept()
"""Clients and heartbeat readers that a worker process keeps. Clients stay open, because a pull may still be in flight
when a landing ends. When the response to that pull arrives, its messages are given back."""

MILLIS = "publishTimestampInMillis"
DATABRICKS = {"messageId": "message_id", MILLIS: "publish_time"}
"""Maps Databricks' column names to this source's."""

NO_RUN = ""
"""Run name in the initial offset. It is empty, because Spark may request that offset several times, and every answer
must be the same. The first end offset has the run's real name."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch. It has everything that must be the same when the batch is read again, and it determines the
    names of the batch's landings. Only the plan of a batch read has the path of its `subscription`."""

    run: str
    batch: int
    readers: int
    lake: str
    watermark_us: int | None = None
    subscription: str | None = None

    def written(self) -> dict[str, Any]:
        """Return the offset as Spark stores it in its checkpoint and shows it in a query's progress."""
        return {name: value for name, value in asdict(self).items() if value is not None} | marks()

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Offset":
        """Convert the result of `written` back to an offset. Raises NewerFormat if a newer tidemark wrote it."""
        refuse_newer(f"an offset of the run {written.get('run')}", written, "checkpoint")
        return cls(**without_marks(written))

    def partitions(self, limit: ReadLimit) -> "list[LandingPartition]":
        """Return one partition per reader."""
        return [LandingPartition(self, reader, limit) for reader in range(self.readers)]


PLAN = JsonKind(FOLDER, "restore a copy: its readers may have acknowledged messages", suffix="/plan", holds=Offset)
"""Stores the end offset of a batch read under the read's landing name. Later reads with this name use the offset."""


@dataclass(frozen=True)
class LandingPartition(InputPartition):
    """The part of a batch that one reader reads. The batch ends at `offset`, and `limit` applies to the whole batch."""

    offset: Offset
    reader: int
    limit: ReadLimit

    def budget(self, options: SourceOptions) -> Budget:
        """Return the limits of this reader's pulls: those in the options, or the reader's share of the batch's limit if
        that is smaller. The messages stay unacknowledged until all of them are durable."""
        messages, size = options.max_messages, int(options.max_bytes)
        if isinstance(self.limit, ReadMaxRows):
            messages = min(messages, self._part(self.limit.max_rows))
        if isinstance(self.limit, ReadMaxBytes):
            size = min(size, self._part(self.limit.max_bytes))
        return Budget(messages, size, options.max_time, options.batch_messages)

    def _part(self, of: int) -> int:
        return of // self.offset.readers + (self.reader < of % self.offset.readers)


class PubSubDataSource(DataSource):
    """The source `pubsub`, for PySpark 4.2 or newer. Register it with `spark.dataSource.register(PubSubDataSource)`.
    The executors need tidemark too, installed or in an archive."""

    called, has_streams = "pubsub", True

    @classmethod
    def name(cls) -> str:
        return cls.called

    def schema(self) -> T.StructType:
        """Return the columns: those of `heartbeats` (without the partition column), those named by the option `fields`,
        and the batch's watermark."""
        return source_schema(read_options(self.options))

    def reader(self, schema: T.StructType) -> "PubSubReader":
        return PubSubReader(self._checked(schema), schema)

    def streamReader(self, schema: T.StructType) -> "PubSubStreamReader":  # noqa: N802 (Spark's name)
        if not self.has_streams:
            raise ExecutorsUnable(
                "a stream over Spark Connect cannot use an archive that the session sent: Spark unpacks it in the "
                "session's folder, but starts a stream's readers in the executor's folder. Start the server with "
                f"`--conf {ARCHIVES}=executors.tar.gz#{ENVIRONMENT}`, as `tidemark up` does on a cluster with "
                "spark.executor_environment, or install tidemark in the Python of Spark's executors. Nothing was pulled"
            )
        return PubSubStreamReader(self._checked(schema), schema)

    def _checked(self, schema: T.StructType) -> SourceOptions:
        """Return the options. Raises InvalidSettings if `schema` has a column or type that the source does not have."""
        options = read_options(self.options)
        if not schema.names or len(set(schema.names)) < len(schema.names):  # Spark would read no row, or fail forever
            raise InvalidSettings("the source pubsub needs a schema with at least one column, and each column once")
        ours = {column.name: column.dataType.simpleString() for column in source_schema(options)}
        types = {**ours, **dict.fromkeys(DATABRICKS, "string"), MILLIS: "bigint"} | ours  # a field may be called so
        for name, asked in ((column.name, column.dataType.simpleString()) for column in schema):
            if name not in types:
                raise InvalidSettings(f"the source pubsub has no column {name}; it has {', '.join(types)}")
            if asked not in (types[name], "string"):  # a value that does not fit would fail the batch forever
                raise InvalidSettings(
                    f"the source pubsub has {name} as {types[name]}, not as {asked}: request {types[name]} or string, "
                    "and convert it in the query"
                )
        return options


class TidemarkDataSource(PubSubDataSource):
    """The source under the name `tidemark`, for a Spark session that has another source named `pubsub`."""

    called = "tidemark"


class PubSubBatchSource(PubSubDataSource):
    """The source for a session over Spark Connect that has sent tidemark to the executors in an archive. Batch reads
    work. A stream is refused when it starts, because its readers cannot find the archive."""

    has_streams = False


class TidemarkBatchSource(TidemarkDataSource):
    """PubSubBatchSource under the name `tidemark`."""

    has_streams = False


class NamedReader:
    """Base class of the readers for batches and streams. Reads partitions.

    Each process opens its own connections on first use, because connections cannot be sent to executors. Both the
    driver and the executors must be able to reach Pub/Sub and the lake.
    """

    def __init__(self, options: SourceOptions, schema: T.StructType, clock: Clock | None = None) -> None:
        self._options, self._schema, self._clock = options, schema, clock or SystemClock()
        place = options.lake.model_copy(update={"endpoint": options.lake_endpoint})
        self.lake = Lake(place, options.contract.fields, self._clock)

    def subscription(self) -> AbstractContextManager[PubSubSubscription]:
        """Return the subscription, in a context manager that closes it."""
        return closing(PubSubSubscription(self.client(), self._options.path, self._clock, self._options))

    def client(self) -> SubscriberClient:
        """Return this process's client. It stays open."""
        server = self._options.server
        return CLIENTS.get(server, lambda: subscriber_client(*server))

    def lease(self) -> timedelta:
        """Return the subscription's ack deadline."""
        return lease_of(self.client(), self._options.path)

    def backlog(self) -> Backlog:
        """Return an object that reads the subscription's backlog."""
        return SnapshotBacklog(self.client(), self._options.path, ReadingTimes(self._clock))

    def judge(self) -> HeartbeatReader:
        """Return the reader that judges messages by the contract. A worker process keeps it, including the schemas that
        it has looked up."""
        options = self._options
        schemas = *options.schema_names, options.schema_content
        kept_as = options.server, options.lake.uri, options.lake_endpoint, *schemas, repr(options.contract)
        accepted = self.lake.accepted_schemas(options.schema_names)
        return CLIENTS.get(kept_as, lambda: reader_of(options.contract, options, accepted))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(int(options.max_bytes_per_trigger))
        return ReadAllAvailable()

    def _planned(self, run: str, batch: int) -> Offset:
        landed = LandedBatches(self.lake.objects(), run).planned(batch)  # None unless the checkpoint was set back
        if landed is None:
            landed = self._options.readers, self.lake.tracking_log().newest().watermark  # None if no topic is tracked
        readers, watermark = landed
        watermark_us = None if watermark is None else to_us(watermark)
        return Offset(run, batch, readers, self._options.lake.uri, watermark_us)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows that have landed under the partition's name. If there are none yet, pull and land messages
        under it first. Runs on an executor."""
        offset, objects = partition.offset, self.lake.objects()
        landed = LandedBatches(objects, offset.run)
        watermark = None if offset.watermark_us is None else from_us(offset.watermark_us)
        name = landed.name(offset.batch, partition.reader)
        if (landing := Notes(objects, MANIFEST).find(name)) is None:  # otherwise Pub/Sub is not needed
            with self.subscription() as subscription:
                landing = land_named(
                    name,
                    Batches(subscription, partition.budget(self._options), self._clock),
                    objects=objects,
                    quarantine=NewFiles(self.lake.quarantine(), self._clock),
                    watermark=watermark,
                    readers=offset.readers,
                    reader=self.judge(),
                    is_over=lambda: landed.is_over(offset.batch),
                )
        columns = arrow_schema(self._schema)
        for piece in landing.pieces:
            rows = Notes(objects, PIECE).read(piece)
            marks = pa.array([watermark] * len(rows), MOMENT)
            asked = as_asked(rows.append_column(WATERMARK, marks), columns, self._options.contract.fields)
            yield from asked.combine_chunks().to_batches(max_chunksize=ROWS_PER_ARROW_BATCH)


class PubSubReader(NamedReader, DataSourceReader):
    """The reader of a batch read. The first read lands messages under the name in the option `landing`, and later reads
    with this name return the same rows."""

    def partitions(self) -> list[LandingPartition]:
        """Return one partition per reader, as planned by the first read with this landing name. Raises InvalidSettings
        if the option `landing` is missing, or names a read of another subscription."""
        if (name := self._options.landing) is None:
            raise InvalidSettings(
                "a batch read of pubsub needs the option landing: set it to a name for this read. Messages are "
                "acknowledged when they are read; reading again with the same name returns the same rows and pulls "
                "nothing"
            )
        plans, path = Notes(self.lake.objects(), PLAN), self._options.path
        plans.ensure(name, replace(self._planned(name, 0), subscription=path))
        planned = plans.read(name)
        if planned.subscription not in (None, path):  # earlier versions did not store it
            raise InvalidSettings(
                f"landing = {name!r} is the name of an earlier read of {planned.subscription}: choose another name to "
                f"read {path}. Nothing was pulled"
            )
        return planned.partitions(self.getDefaultReadLimit())


class PubSubStreamReader(NamedReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. Each batch gets a new offset, even if it will be empty, because only a pull shows whether
    there are messages."""

    _available_at: datetime | None = None
    _nothing_since: tuple[int, datetime] | None = None
    """Describes the current series of batches without a message published before the query began: the number of the
    first batch, and the time at which the source noticed that batch. None if the last batch had such a message."""
    _limit: ReadLimit | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return Offset(NO_RUN, 0, 0, self._options.lake.uri).written()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's)
        """Return the end offset of the next batch, with the newest watermark. Spark stores the offset before anything
        is pulled. `limit` applies to the batch: a limit in rows counts messages, and one in bytes is approximate.

        With the trigger "available now", return `start` once the stream has read all messages published before the
        query began.
        """
        before = Offset.read(start)
        if self._limit is not None and self._is_caught_up(before):
            return start
        self._limit = limit
        return self._planned(before.run if before.run != NO_RUN else uuid.uuid4().hex, before.batch + 1).written()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        self._available_at = self._clock.now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LandingPartition]:
        """Return one partition per reader of the batch that ends at `end`, or none if `start` equals `end`. Their
        number and names depend only on `end`.

        Raises InvalidSettings if the batch in the checkpoint belongs to a lake other than the one in the options.
        """
        offset = Offset.read(end)
        if offset.lake != self._options.lake.uri:
            raise InvalidSettings(
                f"lake = {self._options.lake.uri!r}, but the checkpoint's unfinished batch belongs to the lake "
                f"{offset.lake!r}. Some of the batch's messages may be acknowledged already, and stored only there: "
                "finish the batch with that lake, or start a new checkpoint, which will lack these messages"
            )
        return offset.partitions(self._limit or self.getDefaultReadLimit()) if start != end else []

    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark has processed all batches up to `end`. Delete their landings, except those of the last
        `keep_batches`."""
        offset = Offset.read(end)
        if offset.run != NO_RUN:
            batches = LandedBatches(self.lake.objects(), offset.run)
            batches.end(offset.batch, keep=self._options.keep_batches)

    def _is_caught_up(self, before: Offset) -> bool:
        """Return whether the stream has read all messages published before the query began.

        A reading of the backlog decides this; an empty batch does not prove it. If such messages are left but none has
        arrived for two ack deadlines, another consumer holds them, and the answer is yes. If the backlog cannot be
        read, the answer is yes if the last two batches had no such message.
        """
        if self._available_at is None:
            return False
        now = self._clock.now()
        first, since = self._nothing_since or (before.batch, now)
        self._nothing_since = (first, since) if self._brought_nothing_older(before) else None
        try:
            reading = self.backlog().read()
        except PubSubError:
            return self._nothing_since is not None and first < before.batch
        is_held = self._nothing_since is not None and now - since > 2 * self.lease()
        return is_held or reading.no_later_than >= self._available_at

    def _brought_nothing_older(self, offset: Offset) -> bool:
        objects = self.lake.objects()
        batches, manifests = LandedBatches(objects, offset.run), Notes(objects, MANIFEST)
        landings = [manifests.find(batches.name(offset.batch, reader)) for reader in range(offset.readers)]
        oldest = [landing.oldest_publish_time for landing in landings if landing is not None]
        return all(moment is None or moment >= (self._available_at or moment) for moment in oldest)


def source_schema(options: SourceOptions) -> T.StructType:
    """Return the columns of the source: those of `heartbeats` without the partition column, plus the watermark."""
    columns = [column for column in heartbeat_schema(options.contract.fields) if column.name != PARTITION]
    return spark_schema([*columns, pa.field(WATERMARK, MOMENT)])


def as_asked(rows: pa.Table, columns: pa.Schema, fields: Mapping[str, FieldKind]) -> pa.Table:
    """Return the rows with the columns of this schema. Each column has the source's type or is text. Attributes become
    JSON if they are requested as text. A column may have the name that it has in Databricks' source.

    `fields` is the current value of the option `fields`. A field is null if this option did not name it when the rows
    landed, or gave it a different kind.
    """
    to = partial(pc.CastOptions, allow_invalid_utf8=True)  # a payload may be requested as text, as in Spark's casts
    cast = [_column(rows, column, fields).cast(options=to(column.type)) for column in columns]
    return pa.table(cast, schema=columns)


def _column(rows: pa.Table, column: pa.Field, fields: Mapping[str, FieldKind]) -> pa.Array | pa.ChunkedArray:
    if column.name in fields:
        landed = rows.schema.get_field_index(column.name)
        if landed < 0 or rows.schema.field(landed).type != ARROW_TYPES[fields[column.name]]:
            return pa.nulls(len(rows), column.type)
    is_theirs = column.name in DATABRICKS and column.name not in rows.column_names  # a field may be called so
    found = rows[DATABRICKS[column.name] if is_theirs else column.name]
    if is_theirs and column.name == MILLIS:
        return pc.divide(found.cast(pa.int64()), 1000)
    if pa.types.is_map(found.type) and pa.types.is_string(column.type):
        return pa.chunked_array([[orjson.dumps(dict(pairs)).decode() for pairs in found.to_pylist()]], pa.string())
    return found
