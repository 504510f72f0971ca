"""Protobuf messages, whose schema gets a field in mid-stream."""

from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.demo.shapes.revisions import FIRST, SECOND, UNKNOWN, named, revision_of, without_status_at_first
from tidemark.pipeline.demo.shapes.shape import REASONS, SAME_NAMES, Beat, Shape

Fields = tuple[tuple[str, str, int], ...]
"""Type, name and number of each field. All have presence."""

ALWAYS: Fields = (("sint64", "at", 1), ("string", "device", 2), ("double", "temperature", 3), ("string", "id", 9))
FIELDS: dict[str, Fields] = {FIRST: ALWAYS, SECOND: (*ALWAYS, ("string", "status", 4))}


def _text(fields: Fields) -> str:
    lines = "".join(f"  optional {kind} {name} = {number};\n" for kind, name, number in fields)
    return f'syntax = "proto3";\nmessage Beat {{\n{lines}}}\n'


def _type(fields: Fields) -> Any:
    """The class of such messages, which are as if they were compiled from the text: presence costs no bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="beat.proto", syntax="proto2")
    message = file.message_type.add(name="Beat")
    for kind, name, number in fields:
        message.field.add(name=name, number=number, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Beat"))


TYPES = {revision: _type(fields) for revision, fields in FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Protobuf(Shape):
    """Each message names its revision, as those of a topic with a schema do. An event time is a number, so none is
    unreadable; a temperature that is a text is left out."""

    settings = f"""
[message]
payload = "protobuf"
schema = "schemas"
event_time = "payload:at"
stream_id = "payload:device"
publisher_id = "payload:id"
{SAME_NAMES}"""
    files: ClassVar = {f"schemas/{revision}.proto": _text(fields) for revision, fields in FIELDS.items()}
    reasons = tuple(reason for reason in REASONS if reason is not RejectionReason.UNREADABLE_EVENT_TIME)

    def said(self, beat: Beat) -> Beat:
        return without_status_at_first(beat)

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        revision = revision_of(beat)
        message = TYPES[revision](
            at=beat.time_or_spoilt(beat.event_ms) or None,
            device=beat.stream_or_spoilt,
            temperature=None if isinstance(beat.temperature, str) else beat.temperature,
            id=beat.heartbeat_id,
            **({} if beat.status is None else {"status": beat.status}),
        )
        whole = message.SerializeToString()
        is_unknown = beat.broken is RejectionReason.UNREADABLE_PAYLOAD and beat.variant
        return named(UNKNOWN if is_unknown else revision), beat.broken_payload(whole, whole)
