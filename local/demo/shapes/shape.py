"""The base of message shapes, which encode beats as messages and have the settings to read them."""

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
"""The reasons why messages are meant to be rejected. TOO_OLD is left out: `message.max_age` is off in the
demonstration, so that its history may have any age."""

ABSENT = (None, "")
SPOILT_TIMES = {
    RejectionReason.NO_EVENT_TIME: ABSENT,
    RejectionReason.UNREADABLE_EVENT_TIME: ("yesterday", "2026-13-45T25:00:00Z"),
}
"""The event time of a broken message, in two variants. None means that the message has no event time."""

BYTES_CUT = 3
"""Number of bytes that are cut off the end of a payload to break it."""

SAME_NAMES = """
[message.fields]
temperature = "number"
status = "text"
"""
"""The settings of fields that have the same names in the settings and in the payload."""


class ShapeName(StrEnum):
    """The name of a message shape."""

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
    """The values of one heartbeat, as intended by the publisher. The truth file records beats.

    A temperature is a number, null, or a text, which counts as null. `broken` is the reason why the message is meant to
    be rejected, if any; `variant`, 0 or 1, selects one of two ways to break the message.
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
        """The event time as most shapes write it: a number of milliseconds, or text."""
        return self.rfc_3339 if self.is_rfc_3339 else self.event_ms

    @property
    def rest(self) -> dict[str, Any]:
        """The values of a flat object other than the event time and the stream."""
        return {"id": self.heartbeat_id, "temperature": self.temperature, "status": self.status}

    @property
    def rfc_3339(self) -> str:
        """The event time as text."""
        return iso(from_us(self.event_ms * 1000))

    def time_or_spoilt(self, usual: Any) -> Any:
        """Return the event time as a shape usually writes it, or its substitute in a broken message."""
        return usual if self.broken not in SPOILT_TIMES else SPOILT_TIMES[self.broken][self.variant]

    @property
    def stream_or_spoilt(self) -> str | None:
        """The stream, or its substitute in a broken message."""
        return ABSENT[self.variant] if self.broken is RejectionReason.NO_STREAM_ID else self.stream

    def broken_payload(self, payload: bytes, other: bytes) -> bytes:
        """Return the payload. If the beat is meant to have a broken payload, truncate it or return `other`."""
        if self.broken is not RejectionReason.UNREADABLE_PAYLOAD:
            return payload
        return (payload[:-BYTES_CUT], other)[self.variant]


class Message(NamedTuple):
    """A message as published, and its beats."""

    attributes: dict[str, str]
    payload: bytes
    beats: Sequence[Beat]
    is_array: bool = False

    def id_of(self, number: int, message_id: str) -> str:
        """Return the id of a beat: an element's id if it is a valid element of an array, otherwise the message's id."""
        return f"{message_id}#{number}" if self.is_array and self.beats[number].broken is None else message_id


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to encode beats as messages. A subclass has `encode`, or `messages` if a message has several beats.

    `settings` are the lines of `[message]` that read the messages; `files` are the files that they name, keyed by path
    relative to the settings. `reasons` are all reasons for which a message of this shape can be rejected.
    """

    settings: ClassVar[str]
    files: ClassVar[Mapping[str, str]] = {}
    reasons: ClassVar[tuple[RejectionReason, ...]] = REASONS

    def said(self, beat: Beat) -> Beat:
        """Return the beat as far as this shape can express it. The truth file records this beat."""
        return beat

    def messages(self, beats: Sequence[Beat]) -> list[Message]:
        """Return the messages of beats, in order, each under a kilobyte."""
        return [Message(*self.encode(beat), (beat,)) for beat in beats]

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        """Return the attributes and the payload of a message with one beat."""
        raise NotImplementedError


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, keyed by name."""
    return {name: value for name, value in values.items() if value is not None}
