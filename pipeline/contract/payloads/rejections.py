"""The reasons for rejecting a message, and the verdict on a message that cannot be decided yet."""

from dataclasses import dataclass
from enum import StrEnum


class RejectionReason(StrEnum):
    """The reason for which a message is in quarantine."""

    NO_EVENT_TIME = "NO_EVENT_TIME"
    """The message has no value at the place named by `message.event_time`.

    Set the attribute or field at the publisher, or correct the setting.
    """
    UNREADABLE_EVENT_TIME = "UNREADABLE_EVENT_TIME"
    """The value at `message.event_time` cannot be read as a time.

    Set `message.event_time_unit` (the detail names a unit that would fit) or, for times without a zone,
    `message.timezone`.
    """
    NO_STREAM_ID = "NO_STREAM_ID"
    """A part of `message.stream_id` is missing or empty.

    Set it at the publisher, or correct the setting.
    """
    UNREADABLE_PAYLOAD = "UNREADABLE_PAYLOAD"
    """The payload cannot be decoded with the settings of `[message]`, or its schema does not exist or is not accepted.

    Compare `message.payload`, `schema` and `compression` with what the publisher sends (docs/how-to/encodings.md).
    """
    BEFORE_FIRST_WINDOW = "BEFORE_FIRST_WINDOW"
    """The event time is before `windows.first`.

    Set an earlier `windows.first` if such old messages are expected.
    """
    IN_THE_FUTURE = "IN_THE_FUTURE"
    """The event time is more than `message.max_future_skew` after the publish time.

    Correct the source's clock, or allow a larger skew."""
    TOO_OLD = "TOO_OLD"
    """The event time is more than `message.max_age` before the publish time.

    Allow a larger age if the source buffers that long."""
    NO_ELEMENTS = "NO_ELEMENTS"
    """`message.each` is set, but the array is missing, empty, or not an array.

    Name the right array, or publish at least one element.
    """
    TOO_MANY_ELEMENTS = "TOO_MANY_ELEMENTS"
    """The array has more than 10,000 elements, or they would repeat more than 16 Mi characters of attributes.

    Publish smaller messages."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason code, and a sentence with the wrong value."""

    reason: RejectionReason
    detail: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """No verdict yet. `why` says what the message waits for."""

    why: str


class Unreadable(Exception):
    """A payload cannot be read. The message is the rejection's detail; the decoder catches it."""


class Unknown(Exception):
    """It is not known yet whether a payload can be read. The message says why; the decoder catches it."""


def quoted(value: str) -> str:
    """Quote a message's text for a detail: escaped, and cut to 80 characters."""
    return repr(value if len(value) <= 80 else value[:77] + "...")
