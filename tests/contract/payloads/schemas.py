"""Schemas of one kind of heartbeat, and its bytes in each form."""

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
from google.pubsub_v1 import PubsubMessage

from tests.ingest.judged import LATER
from tidemark.pipeline.contract.messages import Attributes, Messages
from tidemark.pipeline.contract.payloads import schemas
from tidemark.pipeline.contract.payloads.decoder import Decoded, PayloadDecoder
from tidemark.pipeline.contract.payloads.rejections import Rejection
from tidemark.pipeline.pubsub.pulls import table_of

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "acme.Beat",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "device", "type": "string"},
        {"name": "temp", "type": ["null", "double"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "mode", "type": {"type": "enum", "name": "Mode", "symbols": ["IDLE", "BUSY"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "loads", "type": {"type": "array", "items": "double"}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
    ],
}

BEAT: dict[str, Any] = {
    "at": datetime(2026, 11, 21, 5, 20, 0, 123456, tzinfo=UTC),
    "device": "d1",
    "temp": 21.5,
    "price": Decimal("12.34"),
    "raw": b"\xff\x00",
    "mode": "BUSY",
    "day": datetime(2026, 11, 21, tzinfo=UTC).date(),
    "loads": [0.5, 1.5],
    "tags": {"rack": 7},
}

PLAIN: dict[str, Any] = {
    "at": "2026-11-21T05:20:00.123456Z",
    "device": "d1",
    "temp": 21.5,
    "price": 12.34,
    "raw": "/wA=",
    "mode": "BUSY",
    "day": "2026-11-21",
    "loads": [0.5, 1.5],
    "tags": {"rack": 7},
}
"""The same, as it is read."""

PROTO = """\
syntax = "proto3";
package acme;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
message Beat {
  enum Mode { IDLE = 0; BUSY = 1; }
  google.protobuf.Timestamp at = 1;
  string device = 2;
  optional double temp = 3;
  int64 count = 4;
  bytes raw = 5;
  Mode mode = 6;
  repeated double loads = 7;
  map<string, int64> tags = 8;
  Beat inner = 9;
  google.protobuf.Struct more = 10;
}
"""


def container(schema: Any, *records: Mapping[str, Any], codec: str = "null") -> bytes:
    """An Avro object container file."""
    file = io.BytesIO()
    fastavro.writer(file, schema, records, codec=codec)
    return file.getvalue()


def avro(schema: Any, value: Any) -> bytes:
    """A value in Avro's binary encoding."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def avro_text(schema: Any, value: Any) -> bytes:
    """A value in Avro's JSON encoding."""
    stream = io.StringIO()
    fastavro.json_writer(stream, schema, [value])
    return stream.getvalue().encode()


def definition(content: Any, encoding: schemas.Encoding = schemas.Encoding.AVRO) -> schemas.Definition:
    """A schema that a message may name."""
    text = content if isinstance(content, str) else json.dumps(content)
    return schemas.Definition("projects/p/schemas/beats@1a2b3c4d", encoding, text.encode())


def written(revision: str = "1a2b3c4d", encoding: str = "BINARY") -> dict[str, str]:
    """The attributes that name a revision of a schema in a folder."""
    return {schemas.SCHEMA_REVISION: revision, schemas.SCHEMA_ENCODING: encoding}


def by_file(folder: Path, content: Any, encoding: schemas.Encoding = schemas.Encoding.AVRO) -> PayloadDecoder:
    """A decoder by one file."""
    file = folder / {schemas.Encoding.AVRO: "beat.avsc", schemas.Encoding.PROTOBUF: "beat.proto"}[encoding]
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return PayloadDecoder(schemas.PayloadFormat(encoding, schema=str(file)))


def one(decoder: PayloadDecoder, data: bytes | None, attributes: Mapping[str, str] | None = None) -> Any:
    """What becomes of one payload."""
    return decoded(decoder, [attributes or {}], [data]).payloads[0]


def decoded(
    decoder: PayloadDecoder,
    attributes: Sequence[Mapping[str, str]],
    payloads: Sequence[bytes | None],
    asking: schemas.Asking = LATER,
) -> Decoded:
    """What becomes of payloads; by default none waits."""
    messages = [
        PubsubMessage(data=data or b"", attributes=dict(held))._pb
        for held, data in zip(attributes, payloads, strict=True)
    ]
    found = list(decoder.decode(Messages(table_of(messages)), asking))
    held = [one for part in found for one in part.attributes.dicts()]
    return Decoded(Attributes.of_dicts(held), [one for part in found for one in part.payloads])


def why(outcome: Any) -> str:
    """The detail of a rejection."""
    assert isinstance(outcome, Rejection), outcome
    return outcome.detail
