"""Message shapes with a schema. While the demonstration runs, devices are gradually upgraded to a second revision,
which has a new field."""

import io
import json
from typing import Any, ClassVar

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tidemark.local.demo.shapes.shape import REASONS, SAME_NAMES, Beat, Shape
from tidemark.pipeline.contract.heartbeat import RejectionReason

FIRST, SECOND, UNKNOWN = "00000001", "00000002", "0000000f"
"""The ids of the two revisions of the schema, and of a revision that does not exist."""

UPGRADED_OVER = 6
"""Number of heartbeats per device after which all devices use the second revision. At each heartbeat, another sixth of
the devices is upgraded."""

SCHEMA_REVISION, SCHEMA_ENCODING = "googclient_schemarevisionid", "googclient_schemaencoding"
"""The attributes by which Pub/Sub names the schema of a message."""

SETTINGS = f"""
[message]
payload = "%s"
schema = "schemas"
event_time = "payload:at"
stream_id = "payload:device"
publisher_id = "payload:id"
{SAME_NAMES}"""


def revision_of(beat: Beat) -> str:
    """Return the schema revision that a heartbeat's device uses: FIRST or SECOND."""
    return FIRST if beat.sequence < 1 + int(beat.stream[-5:]) % UPGRADED_OVER else SECOND


class OfSchema(Shape):
    """A shape with a schema. Each message names its revision of the schema. The first revision has no field
    `status`."""

    def expressible(self, beat: Beat) -> Beat:
        return beat._replace(status=None) if revision_of(beat) == FIRST else beat

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        revision = revision_of(beat)
        whole = self.written(beat, revision)
        is_unknown = beat.broken is RejectionReason.UNREADABLE_PAYLOAD and beat.variant
        named = {SCHEMA_REVISION: UNKNOWN if is_unknown else revision, SCHEMA_ENCODING: "BINARY"}
        return named, beat.broken_payload(whole, whole)

    def written(self, beat: Beat, revision: str) -> bytes:
        """Return the payload, encoded by this revision of the schema."""
        raise NotImplementedError


AT = {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}, "string"]}
DEVICE = {"name": "device", "type": ["null", "string"]}
STATUS = {"name": "status", "type": ["null", "string"], "default": None}
TEMPERATURE = {"name": "temperature", "type": ["null", "double", "string"]}
ID = {"name": "id", "type": "string"}


def _schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Beat", "fields": list(fields)}


SCHEMAS = {FIRST: _schema(AT, DEVICE, TEMPERATURE, ID), SECOND: _schema(AT, DEVICE, STATUS, TEMPERATURE, ID)}
"""The Avro schema per revision. The new field is between others, so that reading with the wrong revision is noticed."""

PARSED = {revision: fastavro.parse_schema(schema) for revision, schema in SCHEMAS.items()}


class Avro(OfSchema):
    """A shape with Avro records as payloads."""

    settings = SETTINGS % "avro"
    files: ClassVar = {f"schemas/{revision}.avsc": json.dumps(schema, indent=1) for revision, schema in SCHEMAS.items()}

    def written(self, beat: Beat, revision: str) -> bytes:
        record = {"at": beat.time_or_spoilt(beat.time), "device": beat.stream_or_spoilt, **beat.rest}
        whole = io.BytesIO()
        fastavro.schemaless_writer(whole, PARSED[revision], record)
        return whole.getvalue()


Fields = tuple[tuple[str, str, int], ...]
"""The type, name and number of each field. All fields are optional, so an absent value differs from a default."""

ALWAYS: Fields = (("sint64", "at", 1), ("string", "device", 2), ("double", "temperature", 3), ("string", "id", 9))
FIELDS: dict[str, Fields] = {FIRST: ALWAYS, SECOND: (*ALWAYS, ("string", "status", 4))}


def _text(fields: Fields) -> str:
    lines = "".join(f"  optional {kind} {name} = {number};\n" for kind, name, number in fields)
    return f'syntax = "proto3";\nmessage Beat {{\n{lines}}}\n'


def _type(fields: Fields) -> Any:
    """Return the message class for the schema that `_text` writes."""
    file = descriptor_pb2.FileDescriptorProto(name="beat.proto", syntax="proto2")
    message = file.message_type.add(name="Beat")
    for kind, name, number in fields:
        message.field.add(name=name, number=number, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Beat"))


TYPES = {revision: _type(fields) for revision, fields in FIELDS.items()}


class Protobuf(OfSchema):
    """Protobuf messages. Two faults of other shapes are impossible. An event time is a number, so it is always
    readable. A temperature cannot be text, so a message that would have such a temperature has none."""

    settings = SETTINGS % "protobuf"
    files: ClassVar = {f"schemas/{revision}.proto": _text(fields) for revision, fields in FIELDS.items()}
    reasons = tuple(reason for reason in REASONS if reason is not RejectionReason.UNREADABLE_EVENT_TIME)

    def written(self, beat: Beat, revision: str) -> bytes:
        message = TYPES[revision](
            at=beat.time_or_spoilt(beat.event_ms) or None,
            device=beat.stream_or_spoilt,
            temperature=None if isinstance(beat.temperature, str) else beat.temperature,
            id=beat.heartbeat_id,
            **({} if beat.status is None else {"status": beat.status}),
        )
        payload: bytes = message.SerializeToString()
        return payload
