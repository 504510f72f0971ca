"""The decoder: compression, envelopes, and the revisions of a schema."""

import base64
import gzip
import json
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import PubsubMessage

from tests.contract.payloads.schemas import (
    AVRO,
    BEAT,
    PLAIN,
    PROTO,
    avro,
    avro_text,
    by_file,
    decoded,
    definition,
    one,
    why,
    written,
)
from tidemark.pipeline.contract.heartbeat import Heartbeat, HeartbeatReader, Undecided
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.contract.payloads.decoder import PayloadDecoder
from tidemark.pipeline.contract.payloads.parsing import LARGEST, MOST_MEMBERS, MOST_VALUES
from tidemark.pipeline.contract.payloads.schemas import (
    Asking,
    Definition,
    Encoding,
    Envelope,
    PayloadFormat,
    codec_of,
    revision_of,
)
from tidemark.pipeline.pubsub.pulls import table_of
from tidemark.pipeline.settings_message import MessageSettings

JSON = PayloadDecoder(PayloadFormat())
EVENTS = PayloadDecoder(PayloadFormat(envelope=Envelope.CLOUDEVENTS))
CONTEXT = {"specversion": "1.0", "id": "e1", "source": "/rack", "type": "beat", "time": "2026-11-21T05:20:00Z"}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
OBJECT = {"temp": 21.5}


# Compression


def test_by_default_json_is_read_compressed_or_not() -> None:
    plain = json.dumps(OBJECT).encode()
    assert one(JSON, plain) == one(JSON, gzip.compress(plain)) == OBJECT
    assert one(JSON, gzip.compress(plain[:5]) + gzip.compress(plain[5:])) == OBJECT
    assert why(one(JSON, None)).startswith("not JSON")
    assert why(one(JSON, gzip.compress(b"[]"))) == "the payload is an array, not an object"


def test_a_record_of_avro_that_begins_like_gzip_is_taken_for_gzip_by_its_attribute_alone(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in "abc"]}
    decoder, data = by_file(tmp_path, schema), avro(schema, {"a": -16, "b": 517, "c": 3})
    assert data[:2] == b"\x1f\x8a"
    assert one(decoder, data) == {"a": -16, "b": 517, "c": 3}
    assert one(decoder, gzip.compress(data), {"content-encoding": "GZIP"}) == {"a": -16, "b": 517, "c": 3}


@pytest.mark.parametrize(
    ("data", "why_not"),
    [
        (gzip.compress(b"{}")[:-1], "truncated gzip"),
        (gzip.compress(b"{}") + b"xyz", "not gzip"),
        (gzip.compress(b"") * (MOST_MEMBERS + 1), "members"),
        (gzip.compress(bytes(LARGEST + 1), 1), "is larger than"),
        (gzip.compress(b"{}")[:-8] + bytes(8), "not gzip"),
        (b"\x1f\x8b\x08" + bytes(9_000), "not gzip"),
    ],
    ids=["cut", "followed", "many members", "bomb", "wrong checksum", "only begins like gzip"],
)
def test_what_is_no_whole_gzip_or_a_bomb_is_rejected(data: bytes, why_not: str) -> None:
    assert why_not in why(one(JSON, data))
    many = Messages(table_of([PubsubMessage(data=data)._pb] * 9))
    first = next(JSON.decode(many, Asking(0)))
    assert len(first.payloads) == (1 if "larger" in why_not else 9), "many small ones are one part"


def test_a_part_of_a_batch_ends_when_it_has_many_values_in_few_bytes(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": f"f{at}", "type": "null"} for at in range(9_000)]}
    messages = Messages(table_of([PubsubMessage()._pb] * 50))
    parts = [len(part.payloads) for part in by_file(tmp_path, schema).decode(messages, Asking(0))]
    assert parts == [39, 11]
    dense = b'{"many": [' + b"{}," * 400_000 + b"{}]}"
    event = json.dumps({**CONTEXT, "data_base64": base64.b64encode(dense).decode()}).encode()
    for decoder, attributes, data in ((JSON, {}, dense), (EVENTS, {}, dense), (EVENTS, STRUCTURED, event)):
        message = PubsubMessage(data=gzip.compress(data, 1), attributes=attributes)._pb
        parts = [len(part.payloads) for part in decoder.decode(Messages(table_of([message] * 2)), Asking(0))]
        assert parts == [1, 1]


@pytest.mark.parametrize("many", [b"[" + b"{}," * MOST_VALUES + b"{}]", b'{"a":' * (MOST_VALUES + 1)])
def test_json_of_too_many_values_is_rejected_before_it_is_parsed(many: bytes) -> None:
    assert why(one(JSON, gzip.compress(many, 1))) == f"more than {MOST_VALUES} values"


@pytest.mark.parametrize("end", [b"", b"\\", b'"', b"\n"])
def test_values_are_counted_in_linear_time_whatever_the_bytes_are(end: bytes) -> None:
    began = time.monotonic()
    assert why(one(JSON, b'{"' + b'\\"' * 100_000 + b"," * (MOST_VALUES + 1) + end)).startswith("not JSON")
    assert time.monotonic() - began < 30  # quadratic: half an hour


# CloudEvents


def binary(context: Mapping[str, Any]) -> dict[str, str]:
    return {f"ce-{name}": str(value) for name, value in context.items()}


def test_both_modes_of_a_cloudevent_give_the_same() -> None:
    as_binary = decoded(EVENTS, [binary(CONTEXT)], [json.dumps(OBJECT).encode()])
    whole = json.dumps({**CONTEXT, "data": OBJECT}).encode()
    encoded = json.dumps({**CONTEXT, "data_base64": base64.b64encode(json.dumps(OBJECT).encode()).decode()}).encode()
    structured = decoded(EVENTS, [STRUCTURED, STRUCTURED, STRUCTURED], [whole, encoded, gzip.compress(whole)])
    assert structured.payloads == as_binary.payloads * 3 == [OBJECT] * 3
    assert structured.attributes.dicts() == [{**STRUCTURED, **binary(CONTEXT)}] * 3
    assert as_binary.attributes.dicts() == [binary(CONTEXT)]


def test_the_data_of_an_event_may_be_avro(tmp_path: Path) -> None:
    by_file(tmp_path, AVRO)
    decoder = PayloadDecoder(
        PayloadFormat(Encoding.AVRO, envelope=Envelope.CLOUDEVENTS, schema=str(tmp_path / "beat.avsc"))
    )
    event = {**CONTEXT, "data_base64": base64.b64encode(avro(AVRO, BEAT)).decode()}
    assert one(decoder, json.dumps(event).encode(), STRUCTURED) == PLAIN
    value = {**CONTEXT, "data": json.loads(avro_text(AVRO, BEAT))}
    assert one(decoder, json.dumps(value).encode(), STRUCTURED) == PLAIN
    assert one(decoder, avro(AVRO, BEAT), binary(CONTEXT)) == PLAIN


def test_an_event_without_data_needs_a_contract_that_reads_none() -> None:
    event = json.dumps(CONTEXT).encode()
    assert "not JSON" in why(one(EVENTS, event, STRUCTURED))
    nothing = PayloadDecoder(PayloadFormat(Encoding.NONE, envelope=Envelope.CLOUDEVENTS))
    read = decoded(nothing, [STRUCTURED], [event])
    assert (read.attributes.dicts(), read.payloads) == ([{**STRUCTURED, **binary(CONTEXT)}], [None])
    assert decoded(nothing, [binary(CONTEXT)], [b"\x1f\x8b\x08 of another kind"]).payloads == [None]


@pytest.mark.parametrize(
    ("attributes", "event", "why_not"),
    [
        ({"content-type": "application/cloudevents+avro"}, b"", "only application/cloudevents\\+json"),
        ({"content-type": "application/cloudevents-batch+json"}, b"[]", "only application/cloudevents\\+json"),
        (STRUCTURED, b"{", "not JSON"),
        (STRUCTURED, b"[]", "the payload is an array"),
        (STRUCTURED, b'{"data_base64": "%"}', "not base64"),
        (STRUCTURED, b'{"data_base64": 3}', "not base64"),
        (STRUCTURED, b'{"time": {}}', "its 'time' is an object"),
        (STRUCTURED, b'{"data": 3}', "the payload is a number"),
    ],
)
def test_what_is_no_event_is_rejected(attributes: dict[str, str], event: bytes, why_not: str) -> None:
    assert re.search(why_not, why(one(EVENTS, event, attributes)))


# Revisions


class Counted:
    """Schemas in memory, and how often each was looked for."""

    def __init__(self, known: Mapping[str, Definition]) -> None:
        self.known, self.asked = known, Counter[str]()

    def name(self, attributes: Mapping[str, str]) -> str:
        return revision_of(attributes)

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        self.asked[name] += 1
        return self.known.get(name), at_us


def older() -> dict[str, Any]:
    return {**AVRO, "fields": AVRO["fields"][:2]}


def test_a_schema_that_cannot_be_compiled_here_rejects_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = Counted({"0001": definition(PROTO, Encoding.PROTOBUF)})
    decoder = PayloadDecoder(PayloadFormat(Encoding.PROTOBUF), schemas)
    protoc, runs = tmp_path / "protoc", tmp_path / "runs"
    protoc.write_text(f"#!/bin/sh\necho >> {runs}\necho /tmp: No space left on device >&2\nexit 1\n")
    protoc.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(protoc))
        for batch in (1, 2):
            waiting = decoded(decoder, [written("0001")] * 3, [b""] * 3, Asking(batch)).payloads
            assert {type(one) for one in waiting} == {Undecided}
            assert "No space left on device" in waiting[-1].why
            assert len(runs.read_text()) == batch
    assert one(decoder, b"", written("0001"))["device"] == ""


@pytest.mark.parametrize("text", ['{"temp": "\\ud800"}', '{"more": "\\ud800"}', '{"\\ud800": 1, "\\ud800": 2}'])
def test_the_reason_of_a_rejection_can_be_stored_whatever_text_it_quotes(tmp_path: Path, text: str) -> None:
    decoder = by_file(tmp_path, PROTO, Encoding.PROTOBUF)
    detail = why(one(decoder, text.encode(), written(encoding="JSON")))
    assert detail.encode().decode() == detail


def test_each_message_is_read_by_the_revision_that_it_names_and_each_is_looked_up_once() -> None:
    schemas = Counted({"0001": definition(older()), "0002": definition(AVRO)})
    decoder = PayloadDecoder(PayloadFormat(Encoding.AVRO), schemas)
    old = avro(older(), {"at": BEAT["at"], "device": "d1"})
    attributes = [written("0001"), written("0002")] * 10
    read = decoded(decoder, attributes, [old, avro(AVRO, BEAT)] * 10).payloads
    assert read[:2] * 10 == read == [{"at": PLAIN["at"], "device": "d1"}, PLAIN] * 10
    assert schemas.asked == {"0001": 1, "0002": 1}


def test_a_revision_that_does_not_exist_is_waited_for_and_found_when_it_does() -> None:
    schemas, data = Counted({}), [avro(AVRO, BEAT)]
    decoder = PayloadDecoder(PayloadFormat(Encoding.AVRO), schemas)
    (waits,) = decoded(decoder, [written("0001")], data, Asking(999, 1000)).payloads
    assert waits == Undecided("its schema '0001' does not exist")
    assert "does not exist" in why(decoded(decoder, [written("0001")], data, Asking(1000, 1000)).payloads[0])
    schemas.known = {"0001": definition(AVRO)}
    assert one(decoder, avro(AVRO, BEAT), written("0001")) == PLAIN


def test_a_folder_has_a_file_for_each_revision(tmp_path: Path) -> None:
    (tmp_path / "0001.avsc").write_text(json.dumps(AVRO))
    (tmp_path.parent / "secret.avsc").write_text(json.dumps(AVRO))
    decoder = PayloadDecoder(PayloadFormat(Encoding.AVRO, schema=str(tmp_path)))
    data = avro(AVRO, BEAT)
    assert one(decoder, data, written("0001")) == PLAIN
    assert "does not exist" in why(one(decoder, data, written("0002")))
    assert "is not a schema revision" in why(one(decoder, data, written("../secret")))
    assert "was deleted" in why(one(decoder, data, written("_deleted-schema-revision_")))
    assert "has no attribute googclient_schemarevisionid" in why(one(decoder, data))


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "encodings.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")}
FIRST, NOW_US = datetime(2026, 1, 1, tzinfo=UTC), 1_795_238_401_000_000
BEAT_US = 1_795_238_400_000_000


def settings_of(section: str) -> MessageSettings:
    (block,) = re.findall(r"```toml\n(.*?)```", SECTIONS[section], re.DOTALL)
    return MessageSettings(**tomllib.loads(block)["message"])


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "```toml" in text])
def test_the_settings_of_each_example_are_valid(section: str) -> None:
    settings_of(section).contract_from(FIRST)


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "--definition=" in text])
def test_the_published_message_of_a_schema_s_example_is_a_heartbeat(section: str) -> None:
    text, settings = SECTIONS[section], settings_of(section)
    (schema,) = re.findall(r"--definition='(.*?)'\n", text, re.DOTALL)
    (message,) = re.findall(r"--message='(.*?)'\n", text, re.DOTALL)
    value = codec_of(definition(schema, settings.payload), Encoding(settings.payload)).text(message.encode())
    assert value["temp"] == 21.5
    assert HeartbeatReader(settings.contract_from(FIRST)).read({}, value, NOW_US) == Heartbeat("d1", BEAT_US)


def test_the_event_and_the_attributes_of_the_examples_are_heartbeats() -> None:
    (event,) = re.findall(r"--message='(.*?)'\n", SECTIONS["CloudEvents"], re.DOTALL)
    reader = HeartbeatReader(settings_of("CloudEvents").contract_from(FIRST))
    attributes, payloads = decoded(reader.decoder, [{"content-type": "application/cloudevents+json"}], [event.encode()])
    assert reader.read(attributes.of(0), payloads[0], NOW_US) == Heartbeat("/rack/7", BEAT_US)
    (written,) = re.findall(r"--attribute='(.*?)'\n", SECTIONS["All values in attributes"])
    pairs = dict(pair.split("=") for pair in written.split(","))
    reader = HeartbeatReader(settings_of("All values in attributes").contract_from(FIRST))
    assert reader.read(pairs, None, NOW_US) == Heartbeat("d1", BEAT_US)
