"""The reasons for rejecting messages, and the verdict on a message that cannot be judged yet."""

from dataclasses import dataclass
from enum import StrEnum


class RejectionReason(StrEnum):
    """The reason why a message is in quarantine."""

    NO_EVENT_TIME = "NO_EVENT_TIME"
    """The message has no value at the place named by `message.event_time`.

    Set the attribute or field at the publisher, or correct the setting.
    """
    UNREADABLE_EVENT_TIME = "UNREADABLE_EVENT_TIME"
    """The value at `message.event_time` cannot be read as a time.

    Set `message.event_time_unit` (the detail names a unit that would fit, if any) or, for times without a zone,
    `message.timezone`.
    """
    NO_STREAM_ID = "NO_STREAM_ID"
    """A part of `message.stream_id` is missing, empty or too long, or is neither a string nor a whole number.

    Set the part at the publisher, or correct the setting.
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
    """The value at `message.each` is missing, empty, or not an array.

    Name the right array, or publish at least one element.
    """
    TOO_MANY_ELEMENTS = "TOO_MANY_ELEMENTS"
    """The array has more than 10,000 elements, or its elements have more than 1,000 different event hours, or the
    attributes, repeated for each element, have more than 16 Mi characters.

    Publish smaller messages."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejection of a message: its reason, and a phrase that says what is wrong, with the value if there is one."""

    reason: RejectionReason
    detail: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """The verdict on a message that cannot be judged yet. `why` says why it must wait."""

    why: str


class Unreadable(Exception):
    """Raised if a payload cannot be read. The decoder catches it, and uses its text as the rejection's detail."""


class Unknown(Exception):
    """Raised if it is not known yet whether a payload can be read. Its text says why. The decoder catches it."""
