"""The message contract: the rules for a valid heartbeat, and the checks that reject a message.

This module reads event times in the formats that publishers use, and converts them to microseconds since the epoch. It
judges the messages of both subscriptions. So if base rejects a message for its event time (from a broken clock, for
example), tracking rejects it too, and the event time does not affect the watermark.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from types import NoneType
from typing import Any

import orjson

from tidemark.pipeline.clock import HOUR_US, duration_us, format_duration, from_us, iso, to_us
from tidemark.pipeline.contract.payloads.decoder import CE_PREFIX, PayloadDecoder
from tidemark.pipeline.contract.payloads.parsing import json_kind
from tidemark.pipeline.contract.payloads.rejections import Rejection as Rejection
from tidemark.pipeline.contract.payloads.rejections import RejectionReason as RejectionReason
from tidemark.pipeline.contract.payloads.rejections import Undecided as Undecided
from tidemark.pipeline.contract.payloads.schemas import Asking as Asking
from tidemark.pipeline.contract.payloads.schemas import Definitions, Envelope, PayloadFormat
from tidemark.pipeline.contract.places import LONGEST_ID, Place, PlaceKind, id_of

MILLISECONDS = re.compile(r"-?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"-?\d{1,21}(\.\d{1,12})?", re.ASCII)
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt](?!24)\d\d:\d\d:\d\d(\.\d{1,12})?([Zz]|[+-]\d\d:[0-5]\d)", re.ASCII)
"""Matches a time in RFC 3339, except in the hour 24. Only newer versions of Python can read that hour, but verdicts
must not depend on the version of Python."""
LENIENT = re.compile(RFC_3339.pattern.replace("[Tt]", "[Tt ]") + "?", re.ASCII)

MISREAD_US = HOUR_US
"""`advice` suggests another unit only if the event time, read in that unit, is at most this far from the publish
time."""


class EventTimeUnit(StrEnum):
    """The format of an event time. AUTO accepts RFC 3339 and whole numbers of milliseconds since the epoch."""

    AUTO = "auto"
    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    RFC_3339 = "rfc3339"

    @property
    def words(self) -> str:
        """The human-readable name of a unit other than AUTO."""
        return "RFC 3339" if self is EventTimeUnit.RFC_3339 else f"{self.name.lower()} since the epoch"

    @property
    def nanoseconds(self) -> int:
        """Length of the unit of a numeric event time, in nanoseconds. With AUTO, the unit is a millisecond."""
        return {"s": 10**9, "us": 10**3, "ns": 1}.get(self, 10**6)


def read_event_time(
    written: Any, unit: EventTimeUnit = EventTimeUnit.AUTO, timezone: tzinfo | None = None
) -> int | None:
    """Convert an event time to microseconds since the epoch, rounded down. Return None if it cannot be read. Never
    raises.

    - A number may be a JSON number or a string.
    - With the unit RFC_3339, or with a `timezone`, a space may replace the T.
    - With a `timezone`, the zone may be missing. If a clock change repeats a local time, the result is the earlier
      moment. If it skips a local time, the offset from before the change applies.
    """
    if unit is EventTimeUnit.RFC_3339:
        return _moment(written, LENIENT, timezone)
    if unit is not EventTimeUnit.AUTO:
        return _count(written, unit, NUMBER)
    milliseconds = _count(written, unit, MILLISECONDS)
    form = RFC_3339 if timezone is None else LENIENT
    return _moment(written, form, timezone) if milliseconds is None else milliseconds


def advice(written: Any, unit: EventTimeUnit, timezone: tzinfo | None, published_us: int) -> str:
    """Return a hint about the setting that would fix a rejected event time, or an empty string.

    The hint suggests another unit only if the time in that unit is within an hour of the publish time.
    """
    read = read_event_time(written, unit, timezone)
    for other in EventTimeUnit:
        us = read_event_time(written, other, timezone)
        if us is not None and us != read and other is not EventTimeUnit.AUTO and abs(us - published_us) <= MISREAD_US:
            words = other.words.removesuffix(" since the epoch")
            return f'; as {words} it would be {iso(from_us(us))}: set message.event_time_unit = "{other}"'
    is_without_zone = isinstance(written, str) and LENIENT.fullmatch(written) and not written[19:].strip(".0123456789")
    return "; it has no zone: set message.timezone" if is_without_zone and timezone is None else ""


def _count(written: Any, unit: EventTimeUnit, form: re.Pattern[str]) -> int | None:
    if isinstance(written, float):
        written = format(Decimal(repr(written)), "f")  # the shortest decimal that parses to this number
    elif isinstance(written, int) and not isinstance(written, bool) and written.bit_length() <= 64:
        written = str(written)
    if not isinstance(written, str) or not form.fullmatch(written):
        return None
    whole, _, decimals = written.partition(".")
    return int(whole + decimals) * unit.nanoseconds // (1000 * int(10 ** len(decimals)))


def _moment(written: Any, form: re.Pattern[str], timezone: tzinfo | None) -> int | None:
    if not isinstance(written, str) or not form.fullmatch(written):
        return None
    try:
        moment = datetime.fromisoformat(written.upper())
        zoned = moment.replace(tzinfo=moment.tzinfo or timezone)
        return None if zoned.tzinfo is None else to_us(zoned)
    except (ValueError, OverflowError):
        return None


FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,308})(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
"""Matches a number in JSON, with at most as many digits as a 64-bit float may need."""
RESERVED_FIELD_NAMES = frozenset(
    (
        *("window", "stream_id", "event_time", "previous_event_time", "gap_seconds", "missed_heartbeats"),
        *("publish_time", "message_id", "late", "publisher_id", "attributes", "payload", "ordering_key"),
        *("landed_at", "event_hour", "heartbeat_id", "window_start", "window_end"),
    )
)
"""Names of columns in the lake's tables. A compared field must not have one of these names."""

PATIENCE = timedelta(seconds=30)
"""Maximum time for which a message of the base subscription may wait, after its publish time, for a schema that does
not exist yet. After this time the message is rejected.

A message of the tracking subscription may wait twice as long. So tracking does not reject a message while base still
waits for the schema, even if the clocks of the two readers differ by up to PATIENCE.
"""

JSON_OBJECTS = PayloadFormat()


class FieldKind(StrEnum):
    """The type of a compared field. Two numbers are compared by their difference. Values of any other type are
    compared only for equality.

    A value that does not have the configured type counts as null. The stored payload still has the value.
    """

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    JSON = "json"


def compared_columns(name: str, kind: FieldKind) -> tuple[str, str, str]:
    """Return the names of a compared field's columns in `heartbeat_diffs`: value, previous value, and difference or
    change."""
    return name, f"previous_{name}", f"{name}_delta" if kind is FieldKind.NUMBER else f"{name}_changed"


@dataclass(frozen=True, slots=True)
class ComparedField:
    """A field whose value is compared with the value in the stream's previous heartbeat.

    `path` says where the value is; the default is the field's name. A path may begin with `attribute:`, `payload:` or
    `each:` (the element of the payload's array). A path without a prefix is in the payload or, if messages hold several
    heartbeats, in the element.
    """

    kind: FieldKind
    path: str | None = None


@dataclass(frozen=True, slots=True)
class MessageContract:
    """The rules for reading a message: the paths of its event time and ids, the bounds of an event time, the fields to
    compare, and the payload's format.

    - The parts of `stream_id` are joined by `/`.
    - `paths` contains the path of each compared field whose path differs from the field's name.
    - `max_age` limits how much older than its publish time an event may be. None: no limit.
    - `each` is the array in the payload whose elements are heartbeats. None: each message is one heartbeat.
    """

    event_time: Place
    stream_id: tuple[Place, ...]
    publisher_id: Place
    first_event_time: datetime
    max_future_skew: timedelta
    fields: Mapping[str, FieldKind]
    paths: Mapping[str, str] = field(default_factory=dict)
    event_time_unit: EventTimeUnit = EventTimeUnit.AUTO
    timezone: tzinfo | None = None
    payload: PayloadFormat = JSON_OBJECTS
    max_age: timedelta | None = None
    each: Place | None = None

    @property
    def needs_payload(self) -> bool:
        """True if the payload is needed to judge a message: it may contain the event time, the stream id or the
        publisher id, or it contains several heartbeats. A CloudEvent's attributes may be in the payload too."""
        places = (self.event_time, *self.stream_id, self.publisher_id)
        return self.each is not None or any(map(self._may_be_in_payload, places))

    def place_of(self, name: str) -> Place:
        return field_place(self.paths.get(name, name), PlaceKind.PAYLOAD if self.each is None else PlaceKind.EACH)

    def _may_be_in_payload(self, place: Place) -> bool:
        is_of_event = self.payload.envelope is Envelope.CLOUDEVENTS and place.name.startswith(CE_PREFIX)
        return place.kind is PlaceKind.PAYLOAD or (place.kind is PlaceKind.ATTRIBUTE and is_of_event)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A valid heartbeat's stream, and its event time in microseconds since the epoch."""

    stream_id: str
    event_time_us: int


class HeartbeatReader:
    """Judges messages by a contract.

    `decoder` decodes payloads. `schemas` finds the topic's schemas if the contract names no schema file. `judged_by` is
    a digest of all settings on which a verdict depends. Once another process has recorded a different digest in the
    lake, this process stops storing and acknowledging messages.
    """

    def __init__(self, contract: MessageContract, schemas: Definitions | None = None, judged_by: str = "") -> None:
        self.contract, self.judged_by = contract, judged_by
        self.decoder = PayloadDecoder(contract.payload, schemas, may_be_array=contract.each is not None)
        self._first_us = to_us(contract.first_event_time)
        self._skew_us = duration_us(contract.max_future_skew)

    def read(self, attributes: Mapping[str, str], payload: Any, publish_time_us: int) -> Heartbeat | Rejection:
        """Return the heartbeat in a message, or the message's rejection. Never raises.

        `payload` may be None if the contract does not need it. It is an Element if a message holds several heartbeats.
        Guarantee: a heartbeat has `first_event_time <= event time <= publish time + max_future_skew` and, with a
        `max_age`, `publish time - max_age <= event time`.
        """
        contract, place, unit = self.contract, self.contract.event_time, self.contract.event_time_unit
        event_time_us: int | None
        if place.kind is PlaceKind.PUBLISH_TIME:
            written, event_time_us = iso(from_us(publish_time_us)), publish_time_us
        else:
            written = place.find(attributes, payload)
            if written is None or written == "":
                return Rejection(RejectionReason.NO_EVENT_TIME, f"{place} is {_missing(place, written)}")
            event_time_us = read_event_time(written, unit, contract.timezone)

        def rejected(reason: RejectionReason, detail: str) -> Rejection:
            if place.kind is not PlaceKind.PUBLISH_TIME:
                detail += advice(written, unit, contract.timezone, publish_time_us)
            return Rejection(reason, detail)

        if event_time_us is None:
            is_auto = unit is EventTimeUnit.AUTO
            wrong = "neither milliseconds since the epoch nor RFC 3339" if is_auto else f"not {unit.words}"
            return rejected(RejectionReason.UNREADABLE_EVENT_TIME, f"{_short(written)} is {wrong}")
        stream_id = self._stream_id(attributes, payload)
        if isinstance(stream_id, Rejection):
            return stream_id
        if event_time_us < self._first_us:
            wrong = f"before the first window, {iso(contract.first_event_time)}"
            return rejected(RejectionReason.BEFORE_FIRST_WINDOW, f"event time {_short(written)} is {wrong}")
        if event_time_us > publish_time_us + self._skew_us:
            wrong = f"more than {format_duration(contract.max_future_skew)} after {_published(publish_time_us)}"
            return rejected(RejectionReason.IN_THE_FUTURE, f"event time {_short(written)} is {wrong}")
        if contract.max_age is not None and publish_time_us - event_time_us > duration_us(contract.max_age):
            wrong = f"more than {format_duration(contract.max_age)} before {_published(publish_time_us)}"
            return Rejection(RejectionReason.TOO_OLD, f"event time {_short(written)} is {wrong}")
        return Heartbeat(stream_id, event_time_us)

    def _stream_id(self, attributes: Mapping[str, str], payload: Any) -> str | Rejection:
        parts = []
        for place in self.contract.stream_id:
            value = place.find(attributes, payload)
            if not (part := id_of(value)):
                if value is None or value == "":
                    wrong = _missing(place, value)
                elif isinstance(value, str):
                    wrong = f"{_short(value)}, which has {len(value)} characters; an id may have at most {LONGEST_ID}"
                else:
                    wrong = f"{_short(value)}, neither a string nor a whole number of at most 64 bits"
                return Rejection(RejectionReason.NO_STREAM_ID, f"{place} is {wrong}")
            parts.append(part)
        return "/".join(parts)


def read_attribute(text: str | None, kind: FieldKind) -> Any:
    """Convert an attribute's text to a JSON value of this kind. Text that does not fit is returned unchanged,
    and so is None."""
    if text is None:
        return None
    if kind is FieldKind.NUMBER:
        return number if JSON_NUMBER.fullmatch(text) and math.isfinite(number := float(text)) else text
    if kind is FieldKind.BOOLEAN:
        return {"true": True, "false": False}.get(text, text)
    if kind is FieldKind.JSON:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def field_place(path: str, otherwise: PlaceKind) -> Place:
    """Convert a compared field's path to a place in a message. `otherwise` is the kind of a path without a prefix."""
    for kind in (PlaceKind.ATTRIBUTE, PlaceKind.PAYLOAD, PlaceKind.EACH):
        if path.startswith(f"{kind}:"):
            return Place(kind, path.removeprefix(f"{kind}:"))
    return Place(otherwise, path)


PLAIN: Mapping[FieldKind, type] = {FieldKind.NUMBER: float, FieldKind.TEXT: str, FieldKind.BOOLEAN: bool}
"""Maps a kind to the Python type of values that are stored unchanged."""


def read_field(value: Any, kind: FieldKind) -> Any:
    """Return a compared field's value, or None if it is absent, null or not of the configured kind. For the kind JSON,
    the value is returned as JSON text with sorted keys."""
    if kind is FieldKind.JSON and value is not None:
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
            return None
    if kind is FieldKind.NUMBER:
        return float(value) if type(value) in (int, float) and math.isfinite(value) else None
    return value if type(value) is PLAIN.get(kind) else None


def read_each(values: list[Any], kind: FieldKind) -> tuple[list[Any], list[int]]:
    """Apply `read_field` to each value. Also return the positions of the values that are not of this kind."""
    plain = {PLAIN.get(kind), NoneType}
    if plain.issuperset(map(type, values)):
        return values, []
    read = [value if type(value) in plain else read_field(value, kind) for value in values]
    return read, [row for row, value in enumerate(values) if value is not None and read[row] is None]


def _missing(place: Place, value: Any) -> str:
    if value == "":
        return "empty"
    return "absent" if place.kind is PlaceKind.ATTRIBUTE else "absent or null"


def _published(publish_time_us: int) -> str:
    return f"its publish time, {iso(from_us(publish_time_us))}"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() <= 64):
        text = repr(value[:80] if isinstance(value, str) else value)
        return text if len(text) <= 80 else text[:77] + "..."
    return "a number beyond 64 bits" if isinstance(value, int) else json_kind(value)
