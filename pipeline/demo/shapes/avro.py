"""Avro records, whose schema gets a field in mid-stream."""

import io
import json
from dataclasses import dataclass
from typing import Any, ClassVar

import fastavro

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.demo.shapes.revisions import FIRST, SECOND, UNKNOWN, named, revision_of, without_status_at_first
from tidemark.pipeline.demo.shapes.shape import SAME_NAMES, Beat, Shape

AT = {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}, "string"]}
DEVICE = {"name": "device", "type": ["null", "string"]}
STATUS = {"name": "status", "type": ["null", "string"], "default": None}
TEMPERATURE = {"name": "temperature", "type": ["null", "double", "string"]}
ID = {"name": "id", "type": "string"}


def _schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Beat", "fields": list(fields)}


SCHEMAS = {FIRST: _schema(AT, DEVICE, TEMPERATURE, ID), SECOND: _schema(AT, DEVICE, STATUS, TEMPERATURE, ID)}
"""The new field lies between others, so that reading by the wrong revision cannot go unnoticed."""

PARSED = {revision: fastavro.parse_schema(schema) for revision, schema in SCHEMAS.items()}


@dataclass(frozen=True, slots=True)
class Avro(Shape):
    """Each message names its revision, as those of a topic with a schema do."""

    settings = f"""
[message]
payload = "avro"
schema = "schemas"
event_time = "payload:at"
stream_id = "payload:device"
publisher_id = "payload:id"
{SAME_NAMES}"""
    files: ClassVar = {f"schemas/{revision}.avsc": json.dumps(schema, indent=1) for revision, schema in SCHEMAS.items()}

    def said(self, beat: Beat) -> Beat:
        return without_status_at_first(beat)

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        revision = revision_of(beat)
        record = {
            "at": beat.time_or_spoilt(beat.rfc_3339 if beat.is_rfc_3339 else beat.event_ms),
            "device": beat.stream_or_spoilt,
            "temperature": beat.temperature,
            "status": beat.status,
            "id": beat.heartbeat_id,
        }
        written = io.BytesIO()
        fastavro.schemaless_writer(written, PARSED[revision], record)
        whole = written.getvalue()
        is_unknown = beat.broken is RejectionReason.UNREADABLE_PAYLOAD and beat.variant
        return named(UNKNOWN if is_unknown else revision), beat.broken_payload(whole, whole)
