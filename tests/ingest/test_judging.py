"""Judging in columns gives what the contract's own reader says of each row."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pytest
from google.pubsub_v1 import PubsubMessage
from hypothesis import example, given
from hypothesis import strategies as st

from tests.ingest.fakes import CONTRACT
from tests.ingest.judged import histogram_of, judged, read_payload
from tests.watermark.builders import START, at
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import (
    Asking,
    EventTimeUnit,
    FieldKind,
    Heartbeat,
    HeartbeatReader,
    MessageContract,
    Rejection,
    read_field,
)
from tidemark.pipeline.contract.payloads.schemas import Encoding, PayloadFormat
from tidemark.pipeline.contract.places import LONGEST_ID, Place, finder, id_of
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_schema
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.watermark.histogram import NO_EVENT, Histogram

NOW = to_us(at(100_000))
FIRST, LAST = to_us(CONTRACT.first_event_time), NOW + to_us(START + CONTRACT.max_future_skew) - to_us(START)
FIELDS = {"load": FieldKind.NUMBER, "status": FieldKind.TEXT, "is_on": FieldKind.BOOLEAN, "other": FieldKind.JSON}
NOTHING = PayloadFormat(Encoding.NONE)
CONTRACTS = (
    replace(CONTRACT, fields=FIELDS),
    replace(CONTRACT, fields={}, payload=NOTHING),
    replace(CONTRACT, fields=FIELDS, event_time=Place.of("payload:load")),
    replace(CONTRACT, fields=FIELDS, stream_id=(Place.of("payload:status"),)),
    replace(CONTRACT, fields=FIELDS, first_event_time=CONTRACT.first_event_time + timedelta(microseconds=1)),
    replace(CONTRACT, fields=FIELDS, max_future_skew=CONTRACT.max_future_skew - timedelta(microseconds=1)),
    *(replace(CONTRACT, fields=FIELDS, max_age=timedelta(hours=1, microseconds=more)) for more in (-1, 0, 1)),
    replace(CONTRACT, fields=FIELDS, event_time=Place.of("payload:load"), max_age=timedelta(hours=1)),
    *(
        replace(CONTRACT, fields=FIELDS, event_time_unit=unit, timezone=zone, max_age=timedelta(hours=1))
        for unit in EventTimeUnit
        for zone in (None, ZoneInfo("Europe/Berlin"))
    ),
    replace(CONTRACT, fields=FIELDS, event_time=Place.of("publish_time"), publisher_id=Place.of("payload:status")),
    replace(CONTRACT, fields=FIELDS, stream_id=(Place.of("attribute:stream_id"), Place.of("attribute:heartbeat_id"))),
    replace(
        CONTRACT,
        fields=FIELDS,
        paths={"load": "other[1].load", "status": "other.status"},
        event_time=Place.of("payload:other[0]"),
        event_time_unit=EventTimeUnit.SECONDS,
        stream_id=(Place.of("attribute:stream_id"), Place.of("payload:status || `7`")),
    ),
)


def in_any_unit(us: int) -> list[str]:
    """A time in seconds, milliseconds, microseconds and nanoseconds, whole and with decimals."""
    seconds, decimals = divmod(us, 1_000_000)
    exact = f"{seconds}.{decimals:06}"
    return [str(seconds), exact, str(us // 1000), str(us), f"{us}999", f"{us}.9", from_us(us).isoformat(" ")[:26]]


times = st.one_of(
    st.integers(FIRST // 1000 - 2, FIRST // 1000 + 2).map(str),
    st.integers(LAST // 1000 - 2, LAST // 1000 + 2).map(str),
    st.integers(NOW // 1000 - 3_600_002, NOW // 1000 - 3_599_998).map(str),
    st.integers(FIRST // 1000, LAST // 1000).map(str),
    st.integers(-(10**19), 10**19).map(str),
    st.integers(-(10**23), 10**23).map(str),
    st.integers(NOW - 3_600_000_001, NOW - 3_599_999_999).map(in_any_unit).flatmap(st.sampled_from),
    st.integers(LAST - 1, LAST + 1).map(in_any_unit).flatmap(st.sampled_from),
    st.sampled_from(["", "yesterday", "2026-11-01T00:00:00Z", "2026-11-01T01:00:00.5+01:00", "2026-11-21 05:20:00"]),
    st.sampled_from(["٣", "²", "1_0", " 1"]),
    st.text(max_size=3),
)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**60), st.floats(allow_nan=False, allow_infinity=False), st.text("ab")
)
NESTED = b'{"other": [1795000000.25, {"load": 5}], "status": "a"}'
payloads = st.one_of(
    st.dictionaries(st.sampled_from(sorted(FIELDS)), values).map(orjson.dumps),
    st.sampled_from([b"", b"{}", b"[1]", b"null", b"\xff", b'{"load": 1', b'{"other": [1, {}]}', b"7", NESTED]),
)


@st.composite
def drawn_messages(draw: st.DrawFn) -> list[Any]:
    drawn = []
    for number in range(draw(st.integers(0, 8))):
        attributes = {
            "event_time": draw(st.none() | times),
            "stream_id": draw(st.sampled_from([None, "", "a", "b"])),
            "heartbeat_id": draw(st.sampled_from([None, "", "own"])),
        }
        drawn.append(message(number, attributes, draw(payloads), ordering_key=draw(st.sampled_from(["", "k"]))))
    return drawn


def message(number: int, attributes: Mapping[str, str | None], payload: bytes, ordering_key: str = "") -> Any:
    return PubsubMessage(
        data=payload,
        attributes={name: value for name, value in attributes.items() if value is not None},
        message_id=f"m{number}",
        publish_time=from_us(NOW),
        ordering_key=ordering_key,
    )._pb


def by_row(contract: MessageContract, one: Any) -> tuple[Heartbeat | Rejection, Any]:
    """What the contract says of one message, and its payload."""
    payload = read_payload(one.data) if contract.payload.is_read else None
    if isinstance(payload, Rejection):
        verdict = payload if contract.needs_payload else HeartbeatReader(contract).read(one.attributes, None, NOW)
        return (verdict if isinstance(verdict, Rejection) else payload), {}
    return HeartbeatReader(contract).read(one.attributes, payload, NOW), payload


@given(drawn_messages(), st.sampled_from(CONTRACTS), st.none() | st.integers(FIRST, LAST))
@example([message(0, {"event_time": "9" * 18, "stream_id": "a"}, b"{}")], CONTRACTS[0], None)
def test_a_batch_is_judged_singly(messages: list[Any], contract: MessageContract, watermark_us: int | None) -> None:
    found = judged(
        messages, HeartbeatReader(contract), None if watermark_us is None else from_us(watermark_us), Asking(NOW)
    )
    accepted, refused, others = [], [], dict.fromkeys(contract.fields, 0)
    for one in messages:
        verdict, payload = by_row(contract, one)
        whole = (one.message_id, NOW, one.ordering_key or None, sorted(one.attributes.items()), one.data, NOW)
        if isinstance(verdict, Rejection):
            refused.append((*whole, verdict.reason.value, verdict.detail))
            continue
        written = [finder(contract.paths.get(name, name))(payload) for name in contract.fields]
        fields = [read_field(value, kind) for value, kind in zip(written, contract.fields.values(), strict=True)]
        for name, value, read in zip(contract.fields, written, fields, strict=True):
            others[name] += read is None and value is not None
        is_late = watermark_us is not None and verdict.event_time_us < watermark_us
        publisher_id = id_of(contract.publisher_id.find(one.attributes, payload))
        accepted.append((*whole, verdict.stream_id, verdict.event_time_us, publisher_id, is_late, *fields))
    assert found.heartbeats.schema == heartbeat_schema(contract.fields)
    assert found.rejected.schema == QUARANTINE
    assert rows_of(found.rejected, "reason", "detail") == refused
    names = ("stream_id", "event_time", "publisher_id", "late", *contract.fields)
    assert rows_of(found.heartbeats, *names) == accepted
    assert found.of_another_kind == {name: count for name, count in others.items() if count}


def rows_of(rows: pa.Table, *more: str) -> list[Any]:
    names = ("message_id", "publish_time", "ordering_key", "attributes", "payload", "landed_at", *more)
    assert set(rows.column_names) - {"event_hour", "rejected_on"} == set(names)
    times = {"publish_time", "landed_at", "event_time"}
    held = {name: (rows[name].cast(pa.int64()) if name in times else rows[name]).to_pylist() for name in names}
    held["attributes"] = [sorted(dict(one).items()) for one in held["attributes"]]
    return list(zip(*(held[name] for name in names), strict=True))


@given(drawn_messages(), st.sampled_from(CONTRACTS))
def test_the_histogram_of_a_batch_is_the_sum_of_its_messages(messages: list[Any], contract: MessageContract) -> None:
    reader = HeartbeatReader(contract)
    apart = sum((histogram_of([one], reader) for one in messages), start=Histogram.empty())
    assert histogram_of(messages, reader) == apart
    verdicts = [
        by_row(contract if contract.needs_payload else replace(contract, payload=NOTHING), one)[0] for one in messages
    ]
    event_us = [min(verdict.event_time_us, NOW) for verdict in verdicts if isinstance(verdict, Heartbeat)]
    assert apart.oldest_event_us == min(event_us, default=None)
    assert int(apart.count[apart.event_bucket == NO_EVENT].sum()) == len(messages) - len(event_us)


def test_compared_fields_may_be_attributes_of_messages_without_a_payload() -> None:
    kinds = {"temp": "number", "ok": "boolean", "mode": "text", "spec": "json"}
    fields = {name: {"path": f"attribute:{name}", "kind": kind} for name, kind in kinds.items()}
    contract = MessageSettings.model_validate({"payload": "none", "fields": fields}).contract_from(at(0))
    beat = {"stream_id": "s", "event_time": str(NOW // 1000)}
    values = {"temp": "-2.5e1", "ok": "true", "mode": "IDLE", "spec": '{"b":1,"a":2}'}
    batch = judged([message(1, beat | values, b""), message(2, beat, b"")], HeartbeatReader(contract), None)
    assert batch.heartbeats.select(list(kinds)).to_pylist() == [
        {"temp": -25.0, "ok": True, "mode": "IDLE", "spec": '{"a":2,"b":1}'},
        dict.fromkeys(kinds),
    ]
    assert batch.of_another_kind == {}


def test_an_event_whose_payload_is_not_read_is_judged_by_its_context() -> None:
    places = {name: f"attribute:ce-{name}" for name in ("time", "source", "id")}
    written = dict(zip(("event_time", "stream_id", "publisher_id"), places.values(), strict=True))
    contract = MessageSettings.model_validate({"payload": "none", "envelope": "cloudevents", **written})
    times = ["2026-11-21T05:20:00Z", "2026-11-21T06:20:00.1234+01:00", "noon", None]
    messages = [message(n, {"ce-time": time, "ce-source": "a"}, b"x") for n, time in enumerate(times)]
    reader = HeartbeatReader(contract.contract_from(at(-3600)))
    batch = judged(messages, reader, None)
    assert batch.heartbeats["message_id"].to_pylist() == ["m0", "m1"]
    assert batch.rejected["reason"].to_pylist() == ["UNREADABLE_EVENT_TIME", "NO_EVENT_TIME"]
    assert histogram_of(messages, reader).rejected == 2


@pytest.mark.parametrize(("length", "rejected"), [(LONGEST_ID, []), (LONGEST_ID + 1, ["NO_STREAM_ID"])])
def test_an_id_in_the_context_of_an_event_is_as_long_as_any_id_at_most(length: int, rejected: list[str]) -> None:
    written = {"event_time": "publish_time", "stream_id": "attribute:ce-source", "publisher_id": "attribute:ce-id"}
    contract = MessageSettings.model_validate({"payload": "none", "envelope": "cloudevents", **written})
    event = orjson.dumps({"source": "x" * length, "id": "y" * (LONGEST_ID + 1)})
    reader = HeartbeatReader(contract.contract_from(at(-3600)))
    batch = judged([message(1, {"content-type": "application/cloudevents+json"}, event)], reader, None)
    assert batch.rejected["reason"].to_pylist() == rejected
    assert batch.heartbeats["publisher_id"].to_pylist() == [None] * (1 - len(rejected))
