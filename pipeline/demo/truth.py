"""The truth that the synthetic source records: one row for each published message, as Parquet."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.demo.synthetic_beats import KINDS, NUMBER, STATUSES, Rows, SyntheticSource
from tidemark.pipeline.errors import LakeUnwritable
from tidemark.pipeline.heartbeat import RejectionReason

SCHEMA = pa.schema(
    [
        pa.field("stream_id", pa.string()),  # null where the message carries none
        pa.field("event_time", pa.timestamp("us", tz="UTC")),  # null where the message carries none that can be read
        pa.field("heartbeat_id", pa.string()),  # copies share it
        pa.field("temperature", pa.float64()),  # null where it is null or of another type
        pa.field("status", pa.string()),  # null where it is absent
        pa.field("kind", pa.string()),  # heartbeat, duplicate, or the code for which it belongs in quarantine
        pa.field("message_id", pa.string()),
        pa.field("published_at", pa.timestamp("us", tz="UTC")),  # the publisher's clock, just before it was sent
        pa.field("payload", pa.binary()),
        pa.field("attributes", pa.string()),  # a JSON object
    ]
)

ROW_GROUP = 50_000
"""Rows that are gathered in memory before they are written."""


class TruthFile:
    """A Parquet file that is complete after the block, however it ended. Raises LakeUnwritable."""

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
        """Add the messages of one request, a record batch of `SCHEMA`, in order."""
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
                f"the truth cannot be written to {self._path}: {error}; free some space, or name another file"
            ) from error


def truth_of(
    source: SyntheticSource,
    rows: Rows,
    attributes: list[dict[str, str]],
    payloads: list[bytes],
    message_ids: list[str],
    published_at: datetime,
) -> Any:
    """The messages that the source composed from the rows, as a record batch of `SCHEMA`."""
    kinds = np.array(KINDS)[rows["kind"]]
    no_time = np.isin(kinds, (RejectionReason.NO_EVENT_TIME, RejectionReason.UNREADABLE_EVENT_TIME))
    no_payload = kinds == RejectionReason.UNREADABLE_PAYLOAD
    no_number = no_payload | (rows["temperature_form"] != NUMBER)
    status = pa.array(STATUSES, pa.string()).take(pa.array(rows["status"], mask=no_payload))
    columns = [
        pa.array([carried.get(source.stream_id_attribute) or None for carried in attributes], pa.string()),
        pa.array(rows["event_ms"] * 1000, pa.timestamp("us", tz="UTC"), mask=no_time),
        pa.array([carried[source.heartbeat_id_attribute] for carried in attributes], pa.string()),
        pa.array(rows["temperature"], pa.float64(), mask=no_number),
        status,
        pa.array(kinds, pa.string()),
        pa.array(message_ids, pa.string()),
        pa.repeat(pa.scalar(published_at, pa.timestamp("us", tz="UTC")), len(rows)),
        pa.array(payloads, pa.binary()),
        pa.array([orjson.dumps(carried).decode() for carried in attributes], pa.string()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)
