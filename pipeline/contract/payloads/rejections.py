"""Why a message is rejected, and what one waits for that cannot be decided yet."""

from dataclasses import dataclass
from enum import StrEnum


class RejectionReason(StrEnum):
    """Why a message is in quarantine."""

    NO_EVENT_TIME = "NO_EVENT_TIME"
    UNREADABLE_EVENT_TIME = "UNREADABLE_EVENT_TIME"
    NO_STREAM_ID = "NO_STREAM_ID"
    UNREADABLE_PAYLOAD = "UNREADABLE_PAYLOAD"
    BEFORE_FIRST_WINDOW = "BEFORE_FIRST_WINDOW"
    IN_THE_FUTURE = "IN_THE_FUTURE"
    TOO_OLD = "TOO_OLD"
    NO_ELEMENTS = "NO_ELEMENTS"
    TOO_MANY_ELEMENTS = "TOO_MANY_ELEMENTS"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason code, and a sentence with the value that was wrong."""

    reason: RejectionReason
    detail: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """No verdict yet. `why` says what the message waits for."""

    why: str


class Unreadable(Exception):
    """A payload cannot be read. The message is the rejection's detail; the decoder catches it."""


class Unknown(Exception):
    """It is not known now whether a payload can be read. The message says why; the decoder catches it."""


def quoted(value: str) -> str:
    """A text of a message as a detail quotes it: escaped, and cut."""
    return repr(value if len(value) <= 80 else value[:77] + "...")
