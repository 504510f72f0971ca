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

BY_ATTRIBUTES = MessageContract(
    event_time=Place.of("attribute:event_time"),
    stream_id=(Place.of("attribute:stream_id"),),
    publisher_id=Place.of("attribute:heartbeat_id"),
    first_event_time=FIRST,
    max_future_skew=SKEW,
    fields={},
)


def read(
    value: object, *, payload: Any = None, published_us: int = PUBLISHED_US, **changed: Any
) -> Heartbeat | Rejection:
    """The verdict on a message of stream a, whose attribute event_time has this value."""
    attributes = {"stream_id": "a", "site": "north"} | ({} if value is None else {"event_time": str(value)})
    return HeartbeatReader(replace(BY_ATTRIBUTES, **changed)).read(attributes, payload, published_us)


def why(outcome: Heartbeat | Rejection, reason: RejectionReason) -> str:
    """The detail of a rejection for this reason."""
    assert outcome.reason is reason
    return outcome.detail


# ------------------------------------------------------------------------------------------------ what is read


NOON, TO_A_MICROSECOND = "2026-11-21T12:00:00Z", "2026-11-21T12:00:00.123456Z"


@pytest.mark.parametrize(
    ("written", "unit", "read_as"),
    [
        ("1795262400123", "auto", "2026-11-21T12:00:00.123Z"),
        (1795262400123, "auto", "2026-11-21T12:00:00.123Z"),
        ("-1", "auto", "1969-12-31T23:59:59.999Z"),
        ("2026-11-21T14:30:00+02:30", "auto", NOON),
        ("2026-11-21T06:00:00-06:00", "auto", NOON),
        ("2026-11-21T12:00:00.123456999Z", "auto", TO_A_MICROSECOND),  # rounded down
        (1795262400.123456, "s", TO_A_MICROSECOND),
        ("1795262400.1234569", "s", TO_A_MICROSECOND),
        ("-0.0000001", "s", "1969-12-31T23:59:59.999999Z"),
        (1.795262400123e18, "ns", "2026-11-21T12:00:00.123Z"),
        ("2026-11-21 12:00:00Z", "rfc3339", NOON),
    ],
)
def test_an_event_time_is_read_in_its_unit(written: object, unit: str, read_as: str) -> None:
    assert read_event_time(written, EventTimeUnit(unit)) == to_us(datetime.fromisoformat(read_as))


NO_TIMES: dict[str, tuple[object, ...]] = {
    "auto": (
        *("", "yesterday", "1795238400.5", " 5", "٥", "1" * 19, True, 1795238400123.0, None),
        *("2026-11-21T05:20:00", "2026-11-21 05:20:00Z", "2026-11-21T05:20Z", "2026-11-21T05:20:00+0230"),
        *("2026-11-21T05:20:61Z", "2026-02-30T05:20:00Z", "2026-11-21T05:20:00+99:00", "0000-01-01T00:00:00Z"),
        *("2026-11-21T05:20:00Z\n", "2026-11-20T24:00:00Z", "2026-11-21T05:20:00+00:60"),
    ),
    "s": ("2026-11-21T05:20:00Z", "1" * 22, 1e300, True),
    "rfc3339": ("2026-11-21T05:20:00", "1763770000"),
}


@pytest.mark.parametrize("unit", NO_TIMES)
def test_anything_else_is_no_event_time(unit: str) -> None:
    assert {read_event_time(written, EventTimeUnit(unit)) for written in NO_TIMES[unit]} == {None}


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


def test_a_text_without_a_zone_is_in_the_time_zone_that_is_set() -> None:
    for written, in_utc in (
        ("2026-11-21 06:20:00.5", "2026-11-21T05:20:00.5Z"),
        ("2026-07-21T06:20:00", "2026-07-21T04:20:00Z"),
        ("2026-07-21T06:20:00Z", "2026-07-21T06:20:00Z"),  # it says its own
        ("2026-10-25T02:30:00", "2026-10-25T00:30:00Z"),  # repeated: the first of both
        ("2026-03-29T02:30:00", "2026-03-29T01:30:00Z"),  # skipped: by the offset before
    ):
        for unit in (EventTimeUnit.AUTO, EventTimeUnit.RFC_3339):
            assert read_event_time(written, unit, BERLIN) == to_us(datetime.fromisoformat(in_utc))


def test_an_event_may_have_the_time_of_its_publication() -> None:
    of_publication = {"event_time": Place.of("publish_time")}
    assert read(None, **of_publication) == Heartbeat("a", PUBLISHED_US)
    why(read(None, published_us=FIRST_US - 1, **of_publication), RejectionReason.BEFORE_FIRST_WINDOW)


# ------------------------------------------------------------------------------------------- why one is rejected


@pytest.mark.parametrize(
    ("unit", "written", "told"),
    [
        ("auto", "1795238400", '; as seconds it would be 2026-11-21T05:20:00Z: set message.event_time_unit = "s"'),
        ("auto", "1795238400000000000", "; as nanoseconds it would be 2026-11-21T05:20:00Z: "),
        ("auto", "2026-11-21 05:20:00Z", "; as RFC 3339 it would be 2026-11-21T05:20:00Z: set message.event_time_unit"),
        ("auto", "2026-11-21T05:20:00", "; it has no zone: set message.timezone"),
        ("s", "1795238400000", "; as milliseconds it would be 2026-11-21T05:20:00Z: "),
    ],
)
def test_a_rejection_names_the_unit_that_would_be_right(unit: str, written: str, told: str) -> None:
    assert told in read(written, event_time_unit=EventTimeUnit(unit)).detail
    assert "set message" not in why(read("yesterday"), RejectionReason.UNREADABLE_EVENT_TIME)
    assert why(read(""), RejectionReason.NO_EVENT_TIME) == "attribute:event_time is empty"


NEITHER = "neither a string nor a whole number of at most 64 bits"


def test_a_stream_s_parts_are_joined_and_one_that_is_no_id_is_said_in_the_words_of_json() -> None:
    parts = {"stream_id": (Place.of("attribute:site"), Place.of("payload:device.id"))}
    assert read(PUBLISHED_US // 1000, payload={"device": {"id": 7}}, **parts) == Heartbeat("north/7", PUBLISHED_US)
    absent = ({"device": 7}, [7], 7, None, {"device": [{"id": 7}]}, {"device": {"id": None}})
    said = {
        "": "empty",
        True: f"true, {NEITHER}",
        1e30: f"1e+30, {NEITHER}",
        (): f"an array, {NEITHER}",
        2**70: f"a number beyond 64 bits, {NEITHER}",
        "x" * 1025: "which has 1025 characters; an id may have at most 1024",
    }
    ids = [(list(value) if value == () else value, words) for value, words in said.items()]
    for payload, words in [(one, "absent or null") for one in absent] + [
        ({"device": {"id": one}}, w) for one, w in ids
    ]:
        detail = why(read(PUBLISHED_US // 1000, payload=payload, **parts), RejectionReason.NO_STREAM_ID)
        assert detail.startswith("payload:device.id is ")
        assert detail.endswith(words)


def test_an_event_time_at_the_bound_of_skew_or_age_is_accepted_and_one_beyond_is_rejected() -> None:
    def off_by(seconds: int, us: int = 0) -> Heartbeat | Rejection:
        written = from_us(PUBLISHED_US + seconds * 1_000_000 + us).isoformat()
        return read(written, max_age=timedelta(hours=1))

    assert off_by(300) == Heartbeat("a", PUBLISHED_US + 300_000_000)
    assert off_by(-3600) == Heartbeat("a", PUBLISHED_US - 3_600_000_000)
    why(off_by(300, 1), RejectionReason.IN_THE_FUTURE)
    why(off_by(-3600, -1), RejectionReason.TOO_OLD)
    after, before = why(off_by(301), RejectionReason.IN_THE_FUTURE), why(off_by(-3601), RejectionReason.TOO_OLD)
    assert after.endswith("05:25:01+00:00' is more than 5m after its publish time, 2026-11-21T05:20:00Z")
    assert before.endswith("04:19:59+00:00' is more than 1h before its publish time, 2026-11-21T05:20:00Z")


def test_a_payload_that_is_no_json_object_is_rejected() -> None:
    for data in (b"{", b"\xff\xfe", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 100_000):
        assert why(read_payload(data), RejectionReason.UNREADABLE_PAYLOAD).startswith("not JSON: ")
    for data, what in {b'"text"': "a string", b"null": "null", b"true": "a boolean"}.items():
        assert why(read_payload(data), RejectionReason.UNREADABLE_PAYLOAD) == f"the payload is {what}, not an object"


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
            assert FIRST_US <= outcome.event_time_us <= PUBLISHED_US + 300_000_000
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
    ("kind", "values", "others"),
    [
        (FieldKind.NUMBER, [(21.5, 21.5), (21, 21.0), (0, 0.0)], ["21.5", True, [1], float("nan"), float("inf")]),
        (FieldKind.TEXT, [("ok", "ok"), ("", "")], [5, ["ok"]]),
        (FieldKind.BOOLEAN, [(False, False), (True, True)], [1, "true"]),
        (FieldKind.JSON, [({"b": [1, None], "a": True}, '{"a":true,"b":[1,null]}'), ([], "[]"), ("5", '"5"')], []),
    ],
)
def test_wrong_kinds_count_as_null(kind: FieldKind, values: list[tuple[object, object]], others: list[object]) -> None:
    for value, expected in [*values, *((one, None) for one in [*others, None])]:
        read = read_field(value, kind)
        assert (read, type(read)) == (expected, type(expected))
