"""Whatever the bytes, a decoder gives a value or a rejection."""

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.payloads.schemas import AVRO, BEAT, PROTO, avro, avro_text, definition, one, written
from tidemark.pipeline.contract.payloads.avro import AvroCodec
from tidemark.pipeline.contract.payloads.decoder import PayloadDecoder
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Unreadable
from tidemark.pipeline.contract.payloads.schemas import Encoding, Envelope, PayloadFormat

EXAMPLES = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
STRUCTURED = {"content-type": "application/cloudevents+json"}
EVENT = json.dumps({"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data": {"a": [1]}}).encode()
PROTO_TEXT = b'{"device": "d", "tags": {"a": "1"}, "inner": {"inner": {"device": "e"}}, "more": {"a": [1]}}'
NESTED = b"".join(b"\x4a" + b"\x7f" for _ in range(2000))
"""`inner` of protobuf, in itself."""

DEEP = [opening * times for opening in (b"[", b'{"a":', b"\x4a") for times in (10, 5000)]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PayloadDecoder]:
    folder: Path = tmp_path_factory.mktemp("schemas")
    (folder / "a.avsc").write_text(json.dumps(AVRO))
    (folder / "p.proto").write_text(PROTO)
    return {
        "json": PayloadDecoder(PayloadFormat()),
        "avro": PayloadDecoder(PayloadFormat(Encoding.AVRO, schema=str(folder / "a.avsc"))),
        "protobuf": PayloadDecoder(PayloadFormat(Encoding.PROTOBUF, schema=str(folder / "p.proto"))),
        "cloudevents": PayloadDecoder(PayloadFormat(envelope=Envelope.CLOUDEVENTS)),
    }


FORMS: dict[str, tuple[str, dict[str, str], bytes]] = {
    "json": ("json", {}, EVENT),
    "gzip": ("json", {}, gzip.compress(EVENT)),
    "avro": ("avro", {}, avro(AVRO, BEAT)),
    "avro's json": ("avro", written(encoding="JSON"), avro_text(AVRO, BEAT)),
    "protobuf": ("protobuf", {}, b"\x12\x01d\x1a\x08" + bytes(8) + b"\x3a\x08" + bytes(8) + b"\x4a\x03\x12\x01e"),
    "protobuf's json": ("protobuf", written(encoding="JSON"), PROTO_TEXT),
    "cloudevents": ("cloudevents", STRUCTURED, EVENT),
}

HUGE = [b"\xff" * 9 + b"\x01", b"\xfe" * 9 + b"\x01", b"\x80" * 40, b"\xff" * 2000, b"\x0a\xff\xff\xff\xff\x07"]


@st.composite
def hostile(draw: st.DrawFn, valid: bytes) -> bytes:
    """Random bytes, or valid ones: cut, changed, doubled, or with a huge length within."""
    way = draw(st.sampled_from(["random", "cut", "changed", "doubled", "huge", "nested"]))
    if way == "random":
        return draw(st.binary(max_size=200))
    if way == "cut":
        return valid[: draw(st.integers(0, len(valid)))]
    at = draw(st.integers(0, len(valid) - 1))
    if way == "changed":
        return valid[:at] + draw(st.binary(min_size=1, max_size=4)) + valid[at + draw(st.integers(0, 4)) :]
    if way == "doubled":
        return valid[:at] + valid
    if way == "huge":
        return valid[:at] + draw(st.sampled_from(HUGE)) + valid[at + draw(st.integers(0, 1)) :]
    return draw(st.sampled_from([*DEEP, NESTED, 100 * NESTED]))


def odd_schemas() -> st.SearchStrategy[Any]:
    """What begins like a schema of Avro, and need not be one."""
    kinds = st.sampled_from(
        ["record", "array", "map", "enum", "fixed", "int", "bytes", "R", "null", "error", "", 3, None]
    )
    keys = st.sampled_from(["type", "items", "values", "name", "size", "symbols", "fields", "logicalType", "scale"])
    numbers = st.integers(-5, 1 << 40)
    return st.recursive(
        kinds | numbers | st.just("decimal"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=12,
    )


@EXAMPLES
@given(odd_schemas(), st.sampled_from(["field", "whole"]))
def test_whatever_a_schema_says_it_is_ready_or_refused(odd: Any, where: str) -> None:
    fields = [{"name": "a", "type": odd}, {"name": "b", "type": "long"}]
    with suppress(Unreadable):
        codec = AvroCodec(definition(odd if where == "whole" else {"type": "record", "name": "R", "fields": fields}))
        for data in (b"", b"\x02" * 40, b"\xff" * 40):
            with suppress(Unreadable):
                codec.binary(data)


@pytest.mark.parametrize("form", FORMS)
def test_the_valid_payload_of_each_form_is_read(form: str, decoders: dict[str, PayloadDecoder]) -> None:
    name, attributes, valid = FORMS[form]
    assert isinstance(one(decoders[name], valid, attributes), dict)


@pytest.mark.parametrize("form", FORMS)
@EXAMPLES
@given(data=st.data())
def test_each_payload_is_read_or_rejected(form: str, decoders: dict[str, PayloadDecoder], data: st.DataObject) -> None:
    name, attributes, valid = FORMS[form]
    outcome: Any = one(decoders[name], data.draw(hostile(valid)), attributes)
    if isinstance(outcome, Rejection):
        assert outcome.reason is RejectionReason.UNREADABLE_PAYLOAD
        assert 0 < len(outcome.detail) < 1000
    else:
        assert isinstance(outcome, dict)
