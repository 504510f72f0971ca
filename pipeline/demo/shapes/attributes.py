"""All values in attributes, and no payload."""

from dataclasses import dataclass

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.demo.shapes.shape import REASONS, Beat, Shape, present


@dataclass(frozen=True, slots=True)
class Attributes(Shape):
    """A temperature that is a text has its unit, as a text of digits would be a number here."""

    settings = """
[message]
payload = "none"

[message.fields]
temperature = { path = "attribute:temperature", kind = "number" }
status = { path = "attribute:status", kind = "text" }
"""
    reasons = tuple(reason for reason in REASONS if reason is not RejectionReason.UNREADABLE_PAYLOAD)

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        temperature = beat.temperature
        attributes = {
            "event_time": beat.time_or_spoilt(beat.rfc_3339 if beat.is_rfc_3339 else str(beat.event_ms)),
            "stream_id": beat.stream_or_spoilt,
            "heartbeat_id": beat.heartbeat_id,
            "temperature": f"{temperature} C" if isinstance(temperature, str) else temperature and str(temperature),
            "status": beat.status,
        }
        return present(attributes), b""
