"""The truth file: Parquet with one row per heartbeat that the synthetic source has published."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.local.demo.shapes.shape import Message
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.errors import LakeUnwritable

SCHEMA = pa.schema(
    [
        pa.field("stream_id", pa.string()),  # null if the message is meant to have no stream
        pa.field("event_time", pa.timestamp("us", tz="UTC")),  # null if none is meant to be readable
        pa.field("heartbeat_id", pa.string()),  # copies share it
        pa.field("temperature", pa.float64()),  # null if it is null or of another type
        pa.field("status", pa.string()),  # null if there is none
        pa.field("kind", pa.string()),  # heartbeat, duplicate, or the reason why it belongs in quarantine
        pa.field("message_id", pa.string()),
        pa.field("published_at", pa.timestamp("us", tz="UTC")),  # by the publisher's clock, just before sending
        pa.field("payload", pa.binary()),
        pa.field("attributes", pa.string()),  # a JSON object
    ]
)

NO_TIME = (RejectionReason.NO_EVENT_TIME, RejectionReason.UNREADABLE_EVENT_TIME)

ROW_GROUP = 50_000
"""Number of rows that are collected in memory before they are written."""


class TruthFile:
    """Writes a truth file in a `with` block. The file is readable afterwards, even if the block fails. Raises
    LakeUnwritable if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gathered: list[Any] = []
        self._rows = 0
        self._writer: Any = None

    def __enter__(self) -> Self:
        with self._reported():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, SCHEMA, compression="zstd")
        return self

    def __exit__(self, *_: object) -> None:
        with self._reported():
            self._flush()
            self._writer.close()

    def add(self, batch: Any) -> None:
        """Add the heartbeats of one publish request, as a record batch of SCHEMA."""
        self._gathered.append(batch)
        self._rows += len(batch)
        if self._rows >= ROW_GROUP:
            with self._reported():
                self._flush()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._rows = self._gathered, [], 0
            self._writer.write_table(pa.Table.from_batches(gathered, SCHEMA), row_group_size=ROW_GROUP * 2)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeUnwritable(
                f"the truth file {self._path} cannot be written: {error}; free some space, or name another file"
            ) from error


def truth_of(messages: Sequence[Message], message_ids: Sequence[str], published_at: datetime) -> Any:
    """Return the heartbeats of published messages as a record batch of SCHEMA. The values are those that the publisher
    intended."""
    carried = [
        (beat, message, message.id_of(number, its_id))
        for message, its_id in zip(messages, message_ids, strict=True)
        for number, beat in enumerate(message.beats)
    ]
    beats = [beat for beat, _, _ in carried]
    columns = {
        "stream_id": [None if beat.broken is RejectionReason.NO_STREAM_ID else beat.stream for beat in beats],
        "event_time": [None if beat.broken in NO_TIME else beat.event_ms * 1000 for beat in beats],
        "heartbeat_id": [beat.heartbeat_id for beat in beats],
        "temperature": [beat.temperature if isinstance(beat.temperature, float) else None for beat in beats],
        "status": [beat.status for beat in beats],
        "kind": [beat.kind for beat in beats],
        "message_id": [its_id for _, _, its_id in carried],
        "published_at": [published_at] * len(beats),
        "payload": [message.payload for _, message, _ in carried],
        "attributes": [orjson.dumps(message.attributes).decode() for _, message, _ in carried],
    }
    return pa.record_batch([pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA)
