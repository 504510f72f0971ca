"""Judging messages that are plain protobuf, in one go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from google.pubsub_v1 import PubsubMessage

from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader, Undecided
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.contract.payloads.decoder import PayloadDecoder
from tidemark.pipeline.contract.payloads.schemas import PayloadFormat
from tidemark.pipeline.ingest.counting import Counted, RememberedCopies, counted_parts
from tidemark.pipeline.ingest.rows import JudgedRows, judged_rows
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_schema
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.pubsub.pulls import table_of
from tidemark.pipeline.watermark.histogram import Histogram

JSON = PayloadDecoder(PayloadFormat())

LATER = Asking(1 << 57)
"""When no message waits any more."""


@dataclass
class Judged:
    """All parts together."""

    parts: list[JudgedRows]
    schema: pa.Schema

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)

    @property
    def heartbeats(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *(part.heartbeats for part in self.parts)])

    @property
    def rejected(self) -> pa.Table:
        return pa.concat_tables([QUARANTINE.empty_table(), *(part.rejected for part in self.parts)])

    @property
    def of_another_kind(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in self.parts:
            for name, rows in part.rows_of_another_kind.items():
                found[name] = found.get(name, 0) + len(rows)
        return found

    @property
    def undecided(self) -> dict[int, Undecided]:
        found, before = dict[int, Undecided](), 0
        for part in self.parts:
            found |= {before + position: why for position, why in part.undecided.items()}
            before += part.messages
        return found


def messages_of(messages: Sequence[Any]) -> Messages:
    """In columns."""
    return Messages(table_of(messages))


def judged(
    messages: Sequence[Any], reader: HeartbeatReader, watermark: datetime | None, asking: Asking = LATER
) -> Judged:
    """What landing makes of messages; by default none waits."""
    parts = list(judged_rows(messages_of(messages), reader, asking, watermark))
    return Judged(parts, heartbeat_schema(reader.contract.fields))


def counted(
    messages: Sequence[Any],
    reader: HeartbeatReader,
    copies: RememberedCopies,
    laggard: timedelta | None = None,
    asking: Asking = LATER,
) -> Counted:
    """What tracking makes of messages."""
    parts = list(counted_parts(messages_of(messages), reader, copies, asking, laggard))
    histogram = sum((part.histogram for part in parts), Histogram.empty())
    firsts = np.concatenate([part.firsts for part in parts], axis=1)
    undecided, before = dict[int, Undecided](), 0
    for part in parts:
        undecided |= {before + position: why for position, why in part.undecided.items()}
        before += part.messages
    return Counted(before, histogram, firsts, undecided)


def histogram_of(messages: Sequence[Any], reader: HeartbeatReader) -> Histogram:
    """The histogram of messages, each of which counts in full."""
    parts = counted_parts(messages_of(messages), reader, RememberedCopies(), LATER, None)
    return sum((one.histogram for one in parts), Histogram.empty())


def read_payloads(data: Sequence[bytes]) -> list[Any]:
    """Payloads of JSON as they are decoded: objects, or Rejections."""
    parts = JSON.decode(messages_of([PubsubMessage(data=one)._pb for one in data]), LATER)
    return [payload for part in parts for payload in part.payloads]


def read_payload(data: bytes) -> Any:
    return read_payloads([data])[0]
