"""Avro and protobuf: their forms, logical and well-known types, and the schemas that are refused."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from tests.contract.payloads.schemas import (
    AVRO,
    BEAT,
    PLAIN,
    PROTO,
    avro,
    avro_text,
    by_file,
    container,
    definition,
    one,
    why,
    written,
)
from tidemark.pipeline.contract.payloads.avro import AvroCodec, records_of
from tidemark.pipeline.contract.payloads.decoder import PayloadDecoder
from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec, compiled
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import CONTAINER, Encoding, PayloadFormat
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_message import MessageSettings


def record(*types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{at}", "type": it} for at, it in enumerate(types)]}


def test_both_encodings_are_read_as_the_same_plain_values(tmp_path: Path) -> None:
    decoder = by_file(tmp_path, AVRO)
    assert one(decoder, avro(AVRO, BEAT)) == PLAIN
    assert one(decoder, avro_text(AVRO, BEAT), written(encoding="JSON")) == PLAIN


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_a_container_file_is_named_and_what_a_message_holds_is_said(tmp_path: Path, encoding: str) -> None:
    said = why(one(by_file(tmp_path, AVRO), container(AVRO, BEAT), written(encoding=encoding)))
    assert "it is an Avro object container file; a message must hold a single record in Avro's binary or JSON" in said


def test_a_record_that_begins_as_a_container_file_does_is_read(tmp_path: Path) -> None:
    schema = record("int", "int", "int", "int")
    data = avro(schema, {"f0": -40, "f1": 49, "f2": 53, "f3": -1})
    assert data == CONTAINER
    assert one(by_file(tmp_path, schema), data) == {"f0": -40, "f1": 49, "f2": 53, "f3": -1}


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_the_records_of_a_container_file_are_those_that_were_written_byte_for_byte(codec: str) -> None:
    beats = [{**BEAT, "device": "d" * number} for number in range(1, 30)]
    written_there = container(AVRO, *beats, codec=codec)
    assert list(records_of(written_there, "beats.avro")) == [avro(AVRO, beat) for beat in beats]


def test_what_only_begins_as_a_container_file_is_refused() -> None:
    whole = container(AVRO, BEAT)
    tree = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    for content in (CONTAINER, whole[:40], whole[:-30], whole.replace(b"double", b"dribble"), container(tree, {})):
        with pytest.raises(Unreadable):
            list(records_of(content, "beats.avro"))


def test_null_in_a_union_and_numbers_that_json_has_not_are_null() -> None:
    schema = record(["null", "double"], "float", "double")
    codec = AvroCodec(definition(schema))
    assert codec.binary(avro(schema, {"f0": None, "f1": float("nan"), "f2": float("inf")})) == dict.fromkeys(
        ("f0", "f1", "f2")
    )
    assert codec.text(b'{"f0": null, "f1": "NaN", "f2": "Infinity"}') == dict.fromkeys(("f0", "f1", "f2"))


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 1, "1970-01-01T00:00:00.001000Z"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1_000_000_001, "1970-01-01T00:00:01.000000001Z"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, -1, "1969-12-31T23:59:59.999000"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, "1970-01-01T00:00:00.000001"),
        ({"type": "int", "logicalType": "time-millis"}, 1500, "00:00:01.500000"),
        ({"type": "string", "logicalType": "uuid"}, "no uuid", "no uuid"),
        ({"type": "int", "logicalType": "of-another-day"}, 3, 3),
    ],
)
def test_a_logical_type_is_read_as_what_json_would_say(kind: Any, value: Any, read: Any) -> None:
    codec = AvroCodec(definition(record(kind)))
    bare = avro(record(kind["type"]), {"f0": value})
    assert codec.binary(bare) == codec.text(json.dumps({"f0": value}).encode()) == {"f0": read}


@pytest.mark.parametrize(
    ("value", "read"), [("12.34", 12.34), ("5.00", 5), ("-0.01", -0.01), ("1234567890123456.78", "1234567890123456.78")]
)
def test_a_decimal_is_a_number_where_json_s_holds_it_exactly(value: str, read: Any) -> None:
    schema = record({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2})
    assert AvroCodec(definition(schema)).binary(avro(schema, {"f0": Decimal(value)})) == {"f0": read}


def test_bytes_of_another_schema_say_whose_they_are_not(tmp_path: Path) -> None:
    decoder, data = by_file(tmp_path, AVRO), avro(AVRO, BEAT)
    assert why(one(decoder, data[:-1])).endswith("beat.avsc: the bytes end too soon")
    assert why(one(decoder, data + b"\0")).endswith("trailing bytes: 1")
    assert "an object keyed by its type" in why(one(decoder, b'{"temp": 3}', written(encoding="JSON")))
    assert "neither JSON nor BINARY" in why(one(decoder, data, written(encoding="XML")))
    assert "not JSON" in why(one(decoder, data, written(encoding="JSON")))


NESTED: Any = "int"
for _ in range(80):
    NESTED = {"type": "array", "items": NESTED}

LAUGHS = {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "null"}]}
for _level in range(1, 20):
    LAUGHS = {
        "type": "record",
        "name": f"L{_level}",
        "fields": [{"name": "a", "type": LAUGHS}, {"name": "b", "type": f"L{_level - 1}"}],
    }


@pytest.mark.parametrize(
    ("schema", "why_not"),
    [
        (record(["null", "R"]), "recursive: R contains itself"),
        (record({"type": "array", "items": "null"}), "more than 100 values per byte"),
        (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "more than 100 values"),
        (record({"type": "array", "items": {**record(*["null"] * 200, "int"), "name": "S"}}), "more than 100 values"),
        (LAUGHS, "more than 10000 values"),
        (record(NESTED), "more than 64 levels"),
        ('"int"', "is not a record"),
        ({"type": "record"}, "is not a valid Avro schema"),
        ('"no such type"', "is not a valid Avro schema"),
        ({"type": {"type": {}}}, "is not a valid Avro schema"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_schema_that_bytes_could_abuse_is_refused(schema: Any, why_not: str) -> None:
    with pytest.raises(Unreadable, match=why_not):
        AvroCodec(definition(schema))


def test_a_file_that_is_no_schema_is_a_wrong_setting_and_no_message_s_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"message\.schema: the schema .*beat\.avsc is not a valid Avro schema"):
        one(by_file(tmp_path, "{"), b"")
    decoder = by_file(tmp_path, AVRO)
    (tmp_path / "beat.avsc").unlink()
    with pytest.raises(InvalidSettings, match="no such file"):
        one(decoder, b"")


def test_each_decoder_of_a_contract_has_the_schema_file_s_content_that_is_in_the_digest(tmp_path: Path) -> None:
    by_file(tmp_path, AVRO)
    message = MessageSettings(payload=Encoding.AVRO, schema=str(tmp_path / "beat.avsc"))
    assert message.schema_content == json.dumps(AVRO).encode()
    by_file(tmp_path, record("int"))
    contract = message.contract_from(datetime(2026, 1, 1, tzinfo=UTC))
    assert one(PayloadDecoder(contract.payload), avro(AVRO, BEAT)) == PLAIN


JSON = (
    b'{"at": "2026-11-21T05:20:00.123456789Z", "device": "d1", "temp": "NaN", "count": "9007199254740993",'
    b' "raw": "/wA=", "mode": "BUSY", "loads": [0.5], "tags": {"rack": "7"}, "inner": {"device": "d2"},'
    b' "more": {"a": [1, null]}}'
)

EMPTY: dict[str, Any] = dict.fromkeys(("at", "temp", "inner", "more"))
EMPTY |= {"device": "", "count": 0, "raw": "", "mode": "IDLE", "loads": [], "tags": {}}


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
    with pytest.raises(Unreadable, match="Recursion limit"):  # the same at any depth of calls
        codec.text(b'{"unknown": ' + b"[" * 500 + b"]" * 500 + b"}")


def test_the_numbers_of_a_struct_are_whole_or_null_as_they_would_be_elsewhere(codec: ProtobufCodec) -> None:
    message = codec._message()
    message.more.update({"whole": 7, "half": 0.5, "none": float("nan"), "large": 2.0**53, "inside": {"list": [-1]}})
    read = codec.binary(message.SerializeToString())["more"]
    assert (
        repr(read) == "{'half': 0.5, 'inside': {'list': [-1]}, 'large': 9007199254740992.0, 'none': None, 'whole': 7}"
    )


@pytest.mark.parametrize("payload", [b"[]", b'""'])
def test_json_that_is_not_an_object_is_not_an_empty_message(codec: ProtobufCodec, payload: bytes) -> None:
    with pytest.raises(Unreadable, match="not an object"):
        codec.text(payload)


def test_the_entries_of_a_map_are_in_the_order_of_their_keys(codec: ProtobufCodec) -> None:
    entries = {f"k{number:02}": 1 for number in range(40)}
    read = codec.text(json.dumps({"tags": entries, "more": entries}).encode())
    assert [*read["tags"]] == [*read["more"]] == [*entries]


def test_json_may_hold_any_type_of_the_schema_and_no_other() -> None:
    text = 'syntax="proto3"; import "google/protobuf/any.proto"; message A {google.protobuf.Any any = 1;} message B {}'
    codec = ProtobufCodec(definition(text, Encoding.PROTOBUF))
    assert codec.text(b'{"any": {"@type": "x/B"}}')
    with pytest.raises(Unreadable, match=r"google\.protobuf\.Duration"):
        codec.text(b'{"any": {"@type": "x/google.protobuf.Duration", "value": "1s"}}')


def test_a_long_text_is_a_single_value(codec: ProtobufCodec) -> None:
    more = {"a": "x" * 2_100_000}
    assert codec.value({"more": more})["more"] == more


def test_names_are_those_of_the_proto_file_in_camel_case_as_well() -> None:
    text = 'syntax = "proto3"; message A { int64 event_time = 1; optional string HasField = 2; } message B {}'
    codec = ProtobufCodec(definition(text, Encoding.PROTOBUF))
    assert codec.text(b'{"eventTime": 5}') == codec.text(b'{"event_time": 5}') == {"event_time": 5, "HasField": None}


def test_a_compiled_descriptor_set_needs_no_compiler(tmp_path: Path) -> None:
    file = tmp_path / "beat.binpb"
    file.write_bytes(compiled(PROTO.encode(), "beat.proto"))
    assert one(PayloadDecoder(PayloadFormat(Encoding.PROTOBUF, schema=str(file))), b"") == EMPTY


def test_many_empty_messages_in_few_bytes_are_rejected() -> None:
    fields = "".join(f"int32 f{number} = {number}; " for number in range(1, 200))
    text = f'syntax = "proto3"; message A {{ repeated B b = 1; map<int32, B> m = 2; }} message B {{ {fields} }}'
    codec = ProtobufCodec(definition(text, Encoding.PROTOBUF))
    for few in (b"\x0a\x00", b"\x12\x00", b"\x12\x02\x12\x00"):  # the last two: entries of a map
        assert codec.binary(few * 4_900)
        with pytest.raises(Unreadable, match="more than 1000000 values"):
            codec.binary(few * 10_000)
    with pytest.raises(Unreadable, match="more than 1000000 values"):
        codec.text(b'{"b": [' + b"{}," * 10_000 + b"{}]}")
    narrow = ProtobufCodec(
        definition(text.replace("A {", "A { B wide = 3; repeated C c = 4;") + "message C {}", Encoding.PROTOBUF)
    )
    assert narrow.text(b'{"c": [' + b"{}," * 10_000 + b"{}]}"), "an object counts as its own type"


def test_an_absent_field_of_avro_s_json_makes_no_value() -> None:
    codec = AvroCodec(definition(record("int", {"type": "array", "items": {**record("int", "long"), "name": "S"}})))
    assert codec.text(b'{"f1": [{}, {"f1": 2, "other": 3}]}') == {"f1": [{}, {"f1": 2}]}


def test_a_text_that_is_no_schema_says_where() -> None:
    for text, why_not in (
        ("message", "is not a valid protobuf schema: 1:8: Expected message name"),
        ('syntax = "proto3";', "defines no message"),
        ('syntax = "proto3"; import "other.proto"; message A {}', "other.proto"),
    ):
        with pytest.raises(Unreadable, match=why_not):
            ProtobufCodec(definition(text, Encoding.PROTOBUF))
