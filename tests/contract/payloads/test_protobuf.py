"""Protobuf: binary and JSON form, its own types, and texts that are no schema."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from tests.contract.payloads.schemas import PROTO, by_file, definition, one, why, written
from tidemark.pipeline.contract.payloads.decoder import PayloadDecoder
from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec, compiled
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import Encoding, PayloadFormat

JSON = (
    b'{"at": "2026-11-21T05:20:00.123456789Z", "device": "d1", "temp": "NaN", "count": "9007199254740993",'
    b' "raw": "/wA=", "mode": "BUSY", "loads": [0.5], "tags": {"rack": "7"}, "inner": {"device": "d2"},'
    b' "more": {"a": [1, null]}}'
)

EMPTY: dict[str, Any] = {
    "at": None,
    "device": "",
    "temp": None,
    "count": 0,
    "raw": "",
    "mode": "IDLE",
    "loads": [],
    "tags": {},
    "inner": None,
    "more": None,
}


@pytest.fixture(scope="module")
def codec() -> ProtobufCodec:
    return ProtobufCodec(definition(PROTO, Encoding.PROTOBUF))


def test_both_forms_are_read_as_the_same_plain_values(codec: ProtobufCodec) -> None:
    read = codec.text(JSON)
    assert read == {
        "at": "2026-11-21T05:20:00.123456789Z",
        "device": "d1",
        "temp": None,
        "count": 9007199254740993,
        "raw": "/wA=",
        "mode": "BUSY",
        "loads": [0.5],
        "tags": {"rack": 7},
        "inner": {**EMPTY, "device": "d2"},
        "more": {"a": [1.0, None]},
    }
    message = json_format.Parse(JSON, codec._message())
    assert codec.binary(message.SerializeToString()) == read


def test_an_absent_field_has_its_default_and_is_null_only_where_it_has_presence(codec: ProtobufCodec) -> None:
    assert codec.binary(b"") == codec.text(b"{}") == EMPTY


def test_names_are_those_of_the_proto_file_in_camel_case_as_well() -> None:
    text = 'syntax = "proto3"; message A { int64 event_time = 1; } message B {}'
    codec = ProtobufCodec(definition(text, Encoding.PROTOBUF))
    assert codec.text(b'{"eventTime": 5}') == codec.text(b'{"event_time": 5}') == {"event_time": 5}


def test_a_compiled_descriptor_set_needs_no_compiler(tmp_path: Path) -> None:
    file = tmp_path / "beat.binpb"
    file.write_bytes(compiled(PROTO.encode(), "beat.proto"))
    decoder = PayloadDecoder(PayloadFormat(Encoding.PROTOBUF, schema=str(file)))
    assert one(decoder, b"") == EMPTY


def test_bytes_of_another_schema_are_rejected(tmp_path: Path) -> None:
    decoder = by_file(tmp_path, PROTO, Encoding.PROTOBUF)
    assert "beat.proto" in why(one(decoder, b"\x12\x7f"))
    assert "not protobuf's JSON" in why(one(decoder, b'{"count": "many"}', written(encoding="JSON")))
    assert "not protobuf's JSON" in why(one(decoder, b"[" * 100_000, written(encoding="JSON")))


def test_many_empty_messages_in_few_bytes_are_rejected() -> None:
    fields = "".join(f"int32 f{number} = {number}; " for number in range(1, 200))
    text = f'syntax = "proto3"; message A {{ repeated B b = 1; }} message B {{ {fields} }}'
    with pytest.raises(Unreadable, match="more than 1000000 values"):
        ProtobufCodec(definition(text, Encoding.PROTOBUF)).binary(b"\x0a\x00" * 10_000)


@pytest.mark.parametrize(
    ("text", "why_not"),
    [
        ("message", "is not protobuf's: 1:8: Expected message name"),
        ('syntax = "proto3";', "defines no message"),
        ('syntax = "proto3"; import "other.proto"; message A {}', "other.proto"),
    ],
)
def test_a_text_that_is_no_schema_says_where(text: str, why_not: str) -> None:
    with pytest.raises(Unreadable, match=why_not):
        ProtobufCodec(definition(text, Encoding.PROTOBUF))
