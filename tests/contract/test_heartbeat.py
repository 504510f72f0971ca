"""The message contract: what makes a message a heartbeat, and why one is rejected."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.judged import read_payload
from tests.watermark.builders import bounded
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import (
    EventTimeUnit,
    FieldKind,
    Heartbeat,
    HeartbeatReader,
    MessageContract,
    Rejection,
    RejectionReason,
    read_event_time,
    read_field,
)
from tidemark.pipeline.contract.places import Place, finder, values_at

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
FIRST_US = to_us(FIRST)
PUBLISHED_US = to_us(datetime(2026, 11, 21, 5, 20, tzinfo=UTC))
SKEW = timedelta(minutes=5)
SKEW_US = 300_000_000

BY_ATTRIBUTES = MessageContract(
    event_time=Place.of("attribute:event_time"),
    stream_id=(Place.of("attribute:stream_id"),),
    publisher_id=Place.of("attribute:heartbeat_id"),
    first_event_time=FIRST,
    max_future_skew=SKEW,
    fields={},
)
BY_PAYLOAD = replace(BY_ATTRIBUTES, event_time=Place.of("payload:when"), stream_id=(Place.of("payload:who"),))


def by_attributes(**attributes: str) -> Heartbeat | Rejection:
    return HeartbeatReader(BY_ATTRIBUTES).read(attributes, None, PUBLISHED_US)


def by_payload(payload: dict[str, Any] | None) -> Heartbeat | Rejection:
    return HeartbeatReader(BY_PAYLOAD).read({"event_time": "1", "stream_id": "another"}, payload, PUBLISHED_US)


def milliseconds(us: int) -> str:
    return str(us // 1000)


def reason_of(outcome: Heartbeat | Rejection) -> RejectionReason | None:
    return outcome.reason if isinstance(outcome, Rejection) else None


# ------------------------------------------------------------------------------------------------ what is read


def test_a_heartbeat_is_read_from_the_payload_where_the_contract_says_so() -> None:
    payload = {"when": (PUBLISHED_US - 1_500_000) // 1000, "who": "pump-7"}
    assert by_payload(payload) == Heartbeat("pump-7", PUBLISHED_US - 1_500_000)


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ({}, False),
        ({"event_time": Place.of("publish_time")}, False),
        ({"event_time": Place.of("payload:when")}, True),
        ({"stream_id": (Place.of("attribute:site"), Place.of("payload:who"))}, True),
        ({"publisher_id": Place.of("payload:id")}, True),
        ({"each": Place.of("payload:readings")}, True),
    ],
)
def test_the_payload_is_needed_only_where_a_place_is_in_it(changed: dict[str, Any], needed: bool) -> None:
    assert replace(BY_ATTRIBUTES, **changed).needs_payload is needed


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("1795238400123", datetime(2026, 11, 21, 5, 20, 0, 123_000, tzinfo=UTC)),
        (1795238400123, datetime(2026, 11, 21, 5, 20, 0, 123_000, tzinfo=UTC)),
        ("-1", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("2026-11-21T05:20:00Z", datetime(2026, 11, 21, 5, 20, tzinfo=UTC)),
        ("2026-11-21T07:50:00+02:30", datetime(2026, 11, 21, 5, 20, tzinfo=UTC)),
        ("2026-11-20T23:20:00-06:00", datetime(2026, 11, 21, 5, 20, tzinfo=UTC)),
        ("2026-11-21T05:20:00.123456Z", datetime(2026, 11, 21, 5, 20, 0, 123_456, tzinfo=UTC)),
        ("2026-11-21T05:20:00.123456999Z", datetime(2026, 11, 21, 5, 20, 0, 123_456, tzinfo=UTC)),  # rounded down
    ],
)
def test_an_event_time_is_milliseconds_or_rfc_3339(written: object, moment: datetime) -> None:
    assert read_event_time(written) == to_us(moment)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "yesterday",
        "1795238400.5",
        " 5",
        "٥",  # a digit, but not an ASCII one
        "1" * 19,
        "2026-11-21T05:20:00",  # no offset
        "2026-11-21 05:20:00Z",
        "2026-11-21T05:20Z",
        "2026-11-21T05:20:00+0230",
        "2026-11-21T05:20:61Z",
        "2026-02-30T05:20:00Z",
        "2026-11-21T05:20:00+99:00",
        "0000-01-01T00:00:00Z",
        "2026-11-21T05:20:00Z\n",
        True,
        1795238400123.0,
        None,
    ],
)
def test_anything_else_is_no_event_time(written: object) -> None:
    assert read_event_time(written) is None


UNITS = {"s": 10**6, "ms": 10**3, "us": 1}
BERLIN = ZoneInfo("Europe/Berlin")


def decimal(count: int, each: int) -> str:
    """Microseconds in a unit of `each`, exactly."""
    whole, rest = divmod(abs(count), each)
    digits = f".{rest:0{len(str(each)) - 1}}" if each > 1 else ""
    return f"{'-' if count < 0 else ''}{whole}{digits}"


@bounded
@given(st.integers(-(10**17), 10**17), st.sampled_from(sorted(UNITS)))
def test_what_is_written_in_a_unit_is_read_back_to_the_microsecond(us: int, unit: str) -> None:
    assert read_event_time(decimal(us, UNITS[unit]), EventTimeUnit(unit)) == us
    assert read_event_time(us // UNITS[unit], EventTimeUnit(unit)) == us // UNITS[unit] * UNITS[unit]


@pytest.mark.parametrize(
    ("written", "unit", "us"),
    [
        (1763770000.25, "s", 1763770000_250_000),
        ("1763770000.9999999", "s", 1763770000_999_999),
        ("-0.0000001", "s", -1),
        (1.763770000123e18, "ns", 1763770000_123_000),
        ("2026-11-21 05:20:00Z", "rfc3339", to_us(datetime(2026, 11, 21, 5, 20, tzinfo=UTC))),
        ("2026-11-21T05:20:00Z", "s", None),
        ("2026-11-21T05:20:00", "rfc3339", None),
        ("1763770000", "rfc3339", None),
        ("1" * 22, "s", None),
        (1e300, "s", None),
        (True, "s", None),
    ],
)
def test_a_unit_takes_numbers_alone_and_rfc_3339_texts_alone(written: object, unit: str, us: int | None) -> None:
    assert read_event_time(written, EventTimeUnit(unit)) == us


@pytest.mark.parametrize("unit", [EventTimeUnit.AUTO, EventTimeUnit.RFC_3339])
@pytest.mark.parametrize(
    ("written", "in_utc"),
    [
        ("2026-11-21 06:20:00.5", "2026-11-21T05:20:00.5Z"),
        ("2026-07-21T06:20:00", "2026-07-21T04:20:00Z"),
        ("2026-07-21T06:20:00Z", "2026-07-21T06:20:00Z"),  # it says its own
        ("2026-10-25T02:30:00", "2026-10-25T00:30:00Z"),  # repeated: the first of both
        ("2026-03-29T02:30:00", "2026-03-29T01:30:00Z"),  # skipped: by the offset before
    ],
)
def test_a_text_without_a_zone_is_in_the_time_zone_that_is_set(unit: EventTimeUnit, written: str, in_utc: str) -> None:
    assert read_event_time(written, unit, BERLIN) == to_us(datetime.fromisoformat(in_utc))


def test_the_parts_of_a_stream_are_joined_and_the_absent_one_is_named() -> None:
    parts = (Place.of("attribute:site"), Place.of("payload:device.id"))
    reader = HeartbeatReader(replace(BY_ATTRIBUTES, stream_id=parts))
    attributes = {"event_time": milliseconds(PUBLISHED_US), "site": "north"}
    assert reader.read(attributes, {"device": {"id": 7}}, PUBLISHED_US) == Heartbeat("north/7", PUBLISHED_US)
    for payload in ({"device": 7}, [7], 7, None, {"device": [{"id": 7}]}):
        outcome = reader.read(attributes, payload, PUBLISHED_US)
        assert outcome == Rejection(RejectionReason.NO_STREAM_ID, "payload:device.id is absent or null")


def test_an_event_may_have_the_time_of_its_publication() -> None:
    reader = HeartbeatReader(replace(BY_ATTRIBUTES, event_time=Place.of("publish_time")))
    assert reader.read({"stream_id": "a"}, None, PUBLISHED_US) == Heartbeat("a", PUBLISHED_US)
    assert reason_of(reader.read({"stream_id": "a"}, None, FIRST_US - 1)) is RejectionReason.BEFORE_FIRST_WINDOW


# ------------------------------------------------------------------------------------------- why one is rejected


@pytest.mark.parametrize(
    ("attributes", "how"), [({}, "absent"), ({"event_time": ""}, "empty"), ({"Event_Time": "1"}, "absent")]
)
def test_a_message_without_an_event_time_is_rejected(attributes: dict[str, str], how: str) -> None:
    outcome = by_attributes(**attributes, stream_id="a")
    assert outcome == Rejection(RejectionReason.NO_EVENT_TIME, f"attribute:event_time is {how}")


@pytest.mark.parametrize(
    ("unit", "written", "told"),
    [
        ("auto", "1795238400", '; as seconds it would be 2026-11-21T05:20:00Z: set message.event_time_unit = "s"'),
        ("auto", "1795238400000000", "; as microseconds it would be 2026-11-21T05:20:00Z: set message.event_time_unit"),
        ("auto", "1795238400000000000", "; as nanoseconds it would be 2026-11-21T05:20:00Z: "),
        ("auto", "1795238400.5", "; as seconds it would be 2026-11-21T05:20:00.500Z: "),
        ("auto", "2026-11-21 05:20:00Z", "; as RFC 3339 it would be 2026-11-21T05:20:00Z: set message.event_time_unit"),
        ("auto", "2026-11-21T05:20:00", "; it has no zone: set message.timezone"),
        ("s", "1795238400000", "; as milliseconds it would be 2026-11-21T05:20:00Z: "),
        ("s", "2026-11-21T05:20:00Z", "; as RFC 3339 it would be 2026-11-21T05:20:00Z: "),
    ],
)
def test_a_rejection_names_the_unit_that_would_be_right(unit: str, written: str, told: str) -> None:
    reader = HeartbeatReader(replace(BY_ATTRIBUTES, event_time_unit=EventTimeUnit(unit)))
    outcome = reader.read({"event_time": written, "stream_id": "a"}, None, PUBLISHED_US)
    assert isinstance(outcome, Rejection)
    assert told in outcome.detail


def test_no_unit_is_named_where_none_would_be_right() -> None:
    for written in ("1", "1700000000", "1795238700001", "yesterday"):
        outcome = by_attributes(event_time=written, stream_id="a")
        assert isinstance(outcome, Rejection)
        assert "set message" not in outcome.detail


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "absent or null"),
        ("", "empty"),
        (True, "true, neither a text nor a whole number of 64 bits"),
        (1e30, "1e+30, neither a text nor a whole number of 64 bits"),
        ([], "an array, neither a text nor a whole number of 64 bits"),
        (2**70, "a number beyond 64 bits, neither a text nor a whole number of 64 bits"),
        ("x" * 1025, "which has 1025 characters; an id may have at most 1024"),
    ],
)
def test_an_id_that_is_none_is_said_in_the_words_of_json(value: object, said: str) -> None:
    reader = HeartbeatReader(replace(BY_ATTRIBUTES, stream_id=(Place.of("payload:who"),)))
    outcome = reader.read({"event_time": milliseconds(PUBLISHED_US)}, {"who": value}, PUBLISHED_US)
    assert isinstance(outcome, Rejection)
    assert outcome.reason is RejectionReason.NO_STREAM_ID
    assert outcome.detail.startswith("payload:who is ")
    assert outcome.detail.endswith(said)


def test_an_event_time_exactly_the_skew_ahead_is_accepted_and_one_beyond_is_rejected() -> None:
    limit = PUBLISHED_US + SKEW_US
    assert by_attributes(event_time=milliseconds(limit), stream_id="a") == Heartbeat("a", limit)
    outcome = by_attributes(event_time=milliseconds(limit + 1000), stream_id="a")
    assert outcome == Rejection(
        RejectionReason.IN_THE_FUTURE,
        "event time '1795238700001' is more than 5m after its publish time, 2026-11-21T05:20:00Z",
    )
    by_a_microsecond = by_attributes(event_time="2026-11-21T05:25:00.000001Z", stream_id="a")
    assert reason_of(by_a_microsecond) is RejectionReason.IN_THE_FUTURE


def test_an_event_time_exactly_as_old_as_allowed_is_accepted_and_one_beyond_is_rejected() -> None:
    reader = HeartbeatReader(replace(BY_ATTRIBUTES, max_age=timedelta(hours=1)))

    def by_age(age_us: int) -> Heartbeat | Rejection:
        written = from_us(PUBLISHED_US - age_us).isoformat()
        return reader.read({"event_time": written, "stream_id": "a"}, None, PUBLISHED_US)

    hour_us = 3_600_000_000
    assert by_age(hour_us) == Heartbeat("a", PUBLISHED_US - hour_us)
    assert by_age(hour_us + 1_000_000) == Rejection(
        RejectionReason.TOO_OLD,
        "event time '2026-11-21T04:19:59+00:00' is more than 1h before its publish time, 2026-11-21T05:20:00Z",
    )
    assert reason_of(by_age(hour_us + 1)) is RejectionReason.TOO_OLD


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"{", "not JSON: "),
        (b"\xff\xfe", "not JSON: "),
        (b'{"a": NaN}', "not JSON: "),
        (b'{"a": "\\ud800"}', "not JSON: "),
        (b"[" * 100_000, "not JSON: "),
        (b'"text"', "JSON, but a string, not an object"),
        (b"null", "JSON, but null, not an object"),
        (b"true", "JSON, but a boolean, not an object"),
    ],
)
def test_a_payload_that_is_no_json_object_is_rejected(data: bytes, detail: str) -> None:
    outcome = read_payload(data)
    assert isinstance(outcome, Rejection)
    assert outcome.reason is RejectionReason.UNREADABLE_PAYLOAD
    assert outcome.detail.startswith(detail)


# --------------------------------------------------------------------------------------------------- any input

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
event_times = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"\A-?\d{1,25}\Z"),
    st.from_regex(r"\A\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,15})?([Zz]|[+-]\d\d:\d\d)\Z"),
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


numbers = (float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 10**5000, -(10**5000))
hostile = (
    json_values | event_times | st.sampled_from([*numbers, True, "\x00", "9" * 9999]) | st.integers(1, 5000).map(nested)
)
PATHS = (
    *("a.b", "a[0].a", "length(@)", "a[*].b | [0]", "to_number(a)", "to_string(@)"),
    *("@ == a", "sort(a)", "&a", "*.a[]"),
)


@bounded
@given(hostile, hostile, st.sampled_from(PATHS), st.sampled_from(EventTimeUnit), st.sampled_from([None, BERLIN]))
def test_hostile_values_never_raise(
    value: Any, other: Any, path: str, unit: EventTimeUnit, timezone: ZoneInfo | None
) -> None:
    contract = replace(
        BY_ATTRIBUTES,
        event_time=Place.of("payload:a"),
        stream_id=(Place.of("payload:b"), Place.of(f"payload:{path}")),
        event_time_unit=unit,
        timezone=timezone,
    )
    for payload in ({"a": value, "b": other}, value, {"a": PUBLISHED_US, "b": value}):
        outcome = HeartbeatReader(contract).read({}, payload, PUBLISHED_US)
        if isinstance(outcome, Heartbeat):
            assert FIRST_US <= outcome.event_time_us <= PUBLISHED_US + SKEW_US
            assert outcome.stream_id.encode()
        else:
            assert 0 < len(outcome.detail) < 500


@given(st.lists(st.sampled_from(["a", "b", "_c1"]), min_size=1, max_size=4), json_values | st.just({"a": {"b": [1]}}))
def test_a_plain_path_finds_what_the_library_finds(names: list[str], payload: Any) -> None:
    path = ".".join(names)
    found = jmespath.search(path, payload)
    assert finder(path)(payload) == found
    assert values_at(path, [payload, None]) == [found, None]


# ------------------------------------------------------------------------------------------------------ fields


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (FieldKind.NUMBER, 21.5, 21.5),
        (FieldKind.NUMBER, 21, 21.0),
        (FieldKind.NUMBER, 0, 0.0),
        (FieldKind.NUMBER, "21.5", None),
        (FieldKind.NUMBER, True, None),
        (FieldKind.NUMBER, [1], None),
        (FieldKind.NUMBER, float("nan"), None),
        (FieldKind.NUMBER, float("inf"), None),
        (FieldKind.TEXT, "ok", "ok"),
        (FieldKind.TEXT, "", ""),
        (FieldKind.TEXT, 5, None),
        (FieldKind.TEXT, ["ok"], None),
        (FieldKind.BOOLEAN, False, False),
        (FieldKind.BOOLEAN, True, True),
        (FieldKind.BOOLEAN, 1, None),
        (FieldKind.BOOLEAN, "true", None),
        (FieldKind.JSON, {"b": [1, None], "a": True}, '{"a":true,"b":[1,null]}'),
        (FieldKind.JSON, [], "[]"),
        (FieldKind.JSON, 5, "5"),
        (FieldKind.JSON, "5", '"5"'),
        (FieldKind.JSON, False, "false"),
        *((kind, None, None) for kind in FieldKind),
    ],
)
def test_a_field_of_another_kind_counts_as_null(kind: FieldKind, value: object, expected: object) -> None:
    read = read_field(value, kind)
    assert (read, type(read)) == (expected, type(expected))
