"""The message contract: what makes a message a valid heartbeat, and why a message is rejected.

Both subscriptions judge a message's times with the same function. A broken clock thus neither holds the watermark
back nor pushes it forward.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

from tidemark.pipeline.clock import duration_us, from_us, iso, to_us
from tidemark.pipeline.durations import format_duration

FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
RESERVED_FIELD_NAMES = frozenset(
    (
        *("window", "stream_id", "event_time", "previous_event_time", "gap_seconds", "missed_heartbeats"),
        *("publish_time", "message_id", "late", "publisher_id", "attributes", "payload", "ordering_key"),
        *("landed_at", "event_hour", "heartbeat_id"),
    )
)
"""Columns of the lake's tables. A compared field cannot have one of these names."""

MILLISECONDS = re.compile(r"-?\d{1,18}", re.ASCII)
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,12})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class FieldKind(StrEnum):
    """How a payload field is compared: numbers by their difference, other kinds by whether they changed.

    A value of another kind than the configured one counts as null; the payload keeps it unchanged.
    """

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    JSON = "json"


def compared_columns(name: str, kind: FieldKind) -> tuple[str, str, str]:
    """The columns of a compared field in `heartbeat_diffs`: its value, its previous value, and the comparison."""
    return name, f"previous_{name}", f"{name}_delta" if kind is FieldKind.NUMBER else f"{name}_changed"


class RejectionReason(StrEnum):
    """Why a message is in quarantine."""

    NO_EVENT_TIME = "NO_EVENT_TIME"
    UNREADABLE_EVENT_TIME = "UNREADABLE_EVENT_TIME"
    NO_STREAM_ID = "NO_STREAM_ID"
    UNREADABLE_PAYLOAD = "UNREADABLE_PAYLOAD"
    BEFORE_FIRST_WINDOW = "BEFORE_FIRST_WINDOW"
    IN_THE_FUTURE = "IN_THE_FUTURE"
    TOO_OLD = "TOO_OLD"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason code, and a sentence with the value that was wrong."""

    reason: RejectionReason
    detail: str


@dataclass(frozen=True, slots=True)
class MessageContract:
    """Where a message carries its event time and its stream, and which payload fields are compared.

    If `event_time_field` or `stream_id_field` is set, the value comes from the payload instead of an attribute. If
    `payload_is_json` is false, a payload may be anything, and nothing is read from it. Without a `max_age`, an event
    may have happened however long before its message is published.
    """

    event_time_attribute: str
    stream_id_attribute: str
    publisher_id_attribute: str
    event_time_field: str | None
    stream_id_field: str | None
    first_event_time: datetime
    max_future_skew: timedelta
    fields: Mapping[str, FieldKind]
    payload_is_json: bool = True
    max_age: timedelta | None = None

    @property
    def needs_payload(self) -> bool:
        """Whether the event time or the stream is in the payload."""
        return self.event_time_field is not None or self.stream_id_field is not None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A valid message's stream and event time (microseconds since the epoch, UTC)."""

    stream_id: str
    event_time_us: int


class HeartbeatReader:
    """Judges messages by a contract."""

    def __init__(self, contract: MessageContract) -> None:
        self.contract = contract
        self._first_us = to_us(contract.first_event_time)
        self._skew_us = duration_us(contract.max_future_skew)

    def read(
        self, attributes: Mapping[str, str], payload: Mapping[str, Any] | None, publish_time_us: int
    ) -> Heartbeat | Rejection:
        """The heartbeat in a message, or why it is rejected. `payload` may be None unless the contract needs it.

        Guarantee: a heartbeat has `first_event_time <= event time <= publish time + max_future_skew`, and with a
        `max_age` also `publish time - max_age <= event time`.
        """
        contract = self.contract
        if contract.event_time_field is not None:
            written = (payload or {}).get(contract.event_time_field)
        else:
            written = attributes.get(contract.event_time_attribute)
        if written is None or written == "":
            where = contract.event_time_field or contract.event_time_attribute
            return Rejection(RejectionReason.NO_EVENT_TIME, f"{where} is absent")
        event_time_us = read_event_time(written)
        if event_time_us is None:
            return Rejection(
                RejectionReason.UNREADABLE_EVENT_TIME,
                f"{_short(written)} is neither milliseconds since the epoch nor RFC 3339",
            )
        stream_id = self._stream_id(attributes, payload)
        if not stream_id:
            where = contract.stream_id_field or contract.stream_id_attribute
            return Rejection(RejectionReason.NO_STREAM_ID, f"{where} is absent or empty")
        if event_time_us < self._first_us:
            return Rejection(
                RejectionReason.BEFORE_FIRST_WINDOW,
                f"event time {_short(written)} is before the first window, {iso(contract.first_event_time)}",
            )
        if event_time_us > publish_time_us + self._skew_us:
            return Rejection(
                RejectionReason.IN_THE_FUTURE,
                f"event time {_short(written)} is more than {format_duration(contract.max_future_skew)} "
                f"after its publish time, {iso(from_us(publish_time_us))}",
            )
        if contract.max_age is not None and publish_time_us - event_time_us > duration_us(contract.max_age):
            return Rejection(
                RejectionReason.TOO_OLD,
                f"event time {_short(written)} is more than {format_duration(contract.max_age)} "
                f"before its publish time, {iso(from_us(publish_time_us))}",
            )
        return Heartbeat(stream_id, event_time_us)

    def _stream_id(self, attributes: Mapping[str, str], payload: Mapping[str, Any] | None) -> str | None:
        if self.contract.stream_id_field is None:
            return attributes.get(self.contract.stream_id_attribute)
        value = (payload or {}).get(self.contract.stream_id_field)
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def read_event_time(written: Any) -> int | None:
    """Microseconds since the epoch from milliseconds (text or integer) or from RFC 3339; None if unreadable."""
    if isinstance(written, int) and not isinstance(written, bool):
        return written * 1000
    if not isinstance(written, str):
        return None
    if MILLISECONDS.fullmatch(written):
        return int(written) * 1000
    if not RFC_3339.fullmatch(written):
        return None
    try:
        return to_us(datetime.fromisoformat(written.upper()))
    except (ValueError, OverflowError):
        return None


def read_payload(data: bytes) -> dict[str, Any] | Rejection:
    """The payload as a JSON object, or the reason why it is not one."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"not JSON: {error}")
    if not isinstance(payload, dict):
        return Rejection(RejectionReason.UNREADABLE_PAYLOAD, f"JSON, but a {type(payload).__name__}, not an object")
    return payload


def read_field(payload: Mapping[str, Any], name: str, kind: FieldKind) -> Any:
    """A compared field's value, or None if it is absent, null or not of the configured kind."""
    value = payload.get(name)
    if value is None:
        return None
    match kind:
        case FieldKind.NUMBER:
            usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            return float(value) if usable else None
        case FieldKind.TEXT:
            return value if isinstance(value, str) else None
        case FieldKind.BOOLEAN:
            return value if isinstance(value, bool) else None
        case FieldKind.JSON:
            try:
                return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
            except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes
                return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
