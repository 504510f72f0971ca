"""A message shape: it writes beats as messages, and has the settings that read them."""

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
"""Not TOO_OLD: `message.max_age` is off in the demonstration, so that its history may be as old as one likes."""

ABSENT = (None, "")
SPOILT_TIMES = {
    RejectionReason.NO_EVENT_TIME: ABSENT,
    RejectionReason.UNREADABLE_EVENT_TIME: ("yesterday", "2026-13-45T25:00:00Z"),
}
"""The event time of a broken message, in each of two variants. None: it has none."""

BYTES_CUT = 3
"""Bytes cut off the end of a payload to break it."""

SAME_NAMES = """
[message.fields]
temperature = "number"
status = "text"
"""
"""Settings of fields that are in the payload under their own names."""


class ShapeName(StrEnum):
    """The name of a shape."""

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
    """The values of one heartbeat, as the publisher means them. The truth consists of them.

    A temperature may be a number, null, or a text, which counts as null. If there is a `broken`, the message is to be
    rejected for that reason; `variant` is 0 or 1, which of two ways to break it.
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
        """The event time as most shapes write it: milliseconds, or text."""
        return self.rfc_3339 if self.is_rfc_3339 else self.event_ms

    @property
    def rest(self) -> dict[str, Any]:
        """Return the values of a flat object, without the event time and the stream."""
        return {"id": self.heartbeat_id, "temperature": self.temperature, "status": self.status}

    @property
    def rfc_3339(self) -> str:
        """The event time as text."""
        return iso(from_us(self.event_ms * 1000))

    def time_or_spoilt(self, usual: Any) -> Any:
        """The event time as a shape usually writes it, or what stands for it in a broken message."""
        return usual if self.broken not in SPOILT_TIMES else SPOILT_TIMES[self.broken][self.variant]

    @property
    def stream_or_spoilt(self) -> str | None:
        """The stream, or what stands for it in a broken message."""
        return ABSENT[self.variant] if self.broken is RejectionReason.NO_STREAM_ID else self.stream

    def broken_payload(self, payload: bytes, other: bytes) -> bytes:
        """The payload; if it is to be broken, without its end or another one."""
        if self.broken is not RejectionReason.UNREADABLE_PAYLOAD:
            return payload
        return (payload[:-BYTES_CUT], other)[self.variant]


class Message(NamedTuple):
    """A message as it is published, and the beats that it carries."""

    attributes: dict[str, str]
    payload: bytes
    beats: Sequence[Beat]
    is_array: bool = False

    def id_of(self, number: int, message_id: str) -> str:
        """The id under which a beat is to be found: of an array's valid element its own, otherwise the message's."""
        return f"{message_id}#{number}" if self.is_array and self.beats[number].broken is None else message_id


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to put beats into messages. A subclass has `encode`, or `messages` if it puts several beats into one.

    `settings` are the lines of `[message]` that read the messages, `files` the files that these lines name, by their
    paths beside the settings. `reasons` are all for which a message of this shape can be rejected.
    """

    settings: ClassVar[str]
    files: ClassVar[Mapping[str, str]] = {}
    reasons: ClassVar[tuple[RejectionReason, ...]] = REASONS

    def said(self, beat: Beat) -> Beat:
        """Return the beat as far as this shape can express it, which is what the truth holds."""
        return beat

    def messages(self, beats: Sequence[Beat]) -> list[Message]:
        """The messages of beats, in their order, each under a kilobyte."""
        return [Message(*self.encode(beat), (beat,)) for beat in beats]

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        """The attributes and the payload of a message with one beat."""
        raise NotImplementedError


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are there, by name."""
    return {name: value for name, value in values.items() if value is not None}
