"""Several readings in one message, as an array."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.demo.shapes.shape import Beat, Message, Shape, present

LONGEST = 5
"""Readings in one message, which thus stays under a kilobyte."""


@dataclass(frozen=True, slots=True)
class Arrays(Shape):
    """Readings are put together in the order of their publication. In a message with a broken one the others land. It
    has one broken one at most, as it is rejected once."""

    settings = """
[message]
each = "payload:readings"
event_time = "each:at"
stream_id = "each:device"
publisher_id = "each:id"

[message.fields]
temperature = { path = "each:temperature", kind = "number" }
status = { path = "each:status", kind = "text" }
"""

    def messages(self, beats: Sequence[Beat]) -> list[Message]:
        return [_message(together) for together in _grouped(beats)]


def _message(beats: Sequence[Beat]) -> Message:
    whole = orjson.dumps({"readings": [_reading(beat) for beat in beats]})
    return Message({"gateway": "g1"}, beats[0].broken_payload(whole, b'{"readings":'), beats, is_array=True)


def _reading(beat: Beat) -> dict[str, Any]:
    return present(
        {
            "at": beat.time_or_spoilt(beat.rfc_3339 if beat.is_rfc_3339 else beat.event_ms),
            "device": beat.stream_or_spoilt,
            "id": beat.heartbeat_id,
            "temperature": beat.temperature,
            "status": beat.status,
        }
    )


def _grouped(beats: Sequence[Beat]) -> Iterator[list[Beat]]:
    """The beats of each message. One whose payload cannot be read carries nothing else."""
    together: list[Beat] = []
    for beat in beats:
        is_alone = beat.broken is RejectionReason.UNREADABLE_PAYLOAD
        has_broken = beat.broken is not None and any(one.broken for one in together)
        if together and (is_alone or has_broken or len(together) == LONGEST):
            yield together
            together = []
        together.append(beat)
        if is_alone:
            yield together
            together = []
    if together:
        yield together
