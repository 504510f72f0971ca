"""The base class of message shapes. A shape encodes heartbeats as messages, and has the settings by which the pipeline
reads these messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from tidemark.pipeline.clock import from_us, iso
from tidemark.pipeline.contract.heartbeat import RejectionReason

REASONS = (
    RejectionReason.NO_EVENT_TIME,
    RejectionReason.UNREADABLE_EVENT_TIME,
    RejectionReason.NO_STREAM_ID,
    RejectionReason.UNREADABLE_PAYLOAD,
    RejectionReason.BEFORE_FIRST_WINDOW,
    RejectionReason.IN_THE_FUTURE,
)
"""The reasons for which broken messages must be rejected. TOO_OLD is not among them, because the demonstration does not
set `message.max_age`: its backlog may have any age."""

ABSENT = (None, "")
SPOILT_TIMES = {
    RejectionReason.NO_EVENT_TIME: ABSENT,
    RejectionReason.UNREADABLE_EVENT_TIME: ("yesterday", "2026-13-45T25:00:00Z"),
}
"""The invalid event times in messages that must be rejected for these reasons, indexed by `Beat.variant`. None means
that the message has no event time."""

BYTES_CUT = 3
"""Number of bytes cut off a payload's end to make it unreadable."""

SAME_NAMES = """
[message.fields]
temperature = "number"
status = "text"
"""
"""Settings for fields that have the same names in the settings and in the payload."""


class ShapeName(StrEnum):
    JSON = "json"
    NESTED = "nested"
    SECONDS = "seconds"
    ATTRIBUTES = "attributes"
    ARRAYS = "arrays"
    GZIP = "gzip"
    CLOUDEVENTS = "cloudevents"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Beat(NamedTuple):
    """The values of one heartbeat, as the publisher intends them. The truth file records them.

    `temperature` is a number, null, or a string, which must be read as null. `broken` is the reason for which the
    message must be rejected, if any. `variant`, 0 or 1, selects one of two ways to break the message.
    """

    event_ms: int
    stream: str
    heartbeat_id: str
    sequence: int
    temperature: float | str | None
    status: str | None
    kind: str
    is_rfc_3339: bool = False
    broken: RejectionReason | None = None
    variant: int = 0

    @property
    def time(self) -> str | int:
        """The event time as most shapes write it: milliseconds since the epoch, or RFC 3339 text."""
        return self.rfc_3339 if self.is_rfc_3339 else self.event_ms

    @property
    def rest(self) -> dict[str, Any]:
        """The heartbeat's values except event time and stream, as members of a flat JSON object."""
        return {"id": self.heartbeat_id, "temperature": self.temperature, "status": self.status}

    @property
    def rfc_3339(self) -> str:
        return iso(from_us(self.event_ms * 1000))

    def time_or_spoilt(self, usual: Any) -> Any:
        """Return `usual`, the event time as the shape writes it, or its substitute in a broken message."""
        return usual if self.broken not in SPOILT_TIMES else SPOILT_TIMES[self.broken][self.variant]

    @property
    def stream_or_spoilt(self) -> str | None:
        """The stream, or its substitute in a broken message."""
        return ABSENT[self.variant] if self.broken is RejectionReason.NO_STREAM_ID else self.stream

    def broken_payload(self, payload: bytes, other: bytes) -> bytes:
        """Return `payload` or, if this heartbeat must be unreadable, a truncated payload (variant 0) or `other` (1)."""
        if self.broken is not RejectionReason.UNREADABLE_PAYLOAD:
            return payload
        return (payload[:-BYTES_CUT], other)[self.variant]


class Message(NamedTuple):
    """A message to publish, and the heartbeats that it contains."""

    attributes: dict[str, str]
    payload: bytes
    beats: Sequence[Beat]
    is_array: bool = False

    def id_of(self, number: int, message_id: str) -> str:
        """Return the id of a heartbeat: the message id, with `#number` added for a valid heartbeat in an array."""
        return f"{message_id}#{number}" if self.is_array and self.beats[number].broken is None else message_id


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to encode heartbeats as messages. A subclass implements `encode`, or `messages` if its messages have
    several heartbeats.

    `settings` is the section `[message]` by which the pipeline reads the messages. `files` are the files that
    `settings` names, keyed by their path relative to the settings file. `reasons` are the reasons for which messages of
    this shape can be rejected.
    """

    settings: ClassVar[str]
    files: ClassVar[Mapping[str, str]] = {}
    reasons: ClassVar[tuple[RejectionReason, ...]] = REASONS

    def expressible(self, beat: Beat) -> Beat:
        """Return the heartbeat with only the values that this shape can express. The truth file records the result."""
        return beat

    def messages(self, beats: Sequence[Beat]) -> list[Message]:
        """Return the messages for these heartbeats, in order. Each is under a kilobyte."""
        return [Message(*self.encode(beat), (beat,)) for beat in beats]

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        """Return the attributes and the payload of a message with one heartbeat."""
        raise NotImplementedError


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, keyed by name."""
    return {name: value for name, value in values.items() if value is not None}
