"""A JSON object as payload; event time, stream and id in attributes."""

from dataclasses import dataclass

import orjson

from tidemark.pipeline.demo.shapes.shape import SAME_NAMES, Beat, Shape, present


@dataclass(frozen=True, slots=True)
class JsonObject(Shape):
    """The default. The attributes may have other names, as the settings of a pipeline say."""

    settings = f"""
[message]
event_time = "attribute:event_time"
stream_id = "attribute:stream_id"
publisher_id = "attribute:heartbeat_id"
{SAME_NAMES}"""
    event_time: str = "event_time"
    stream_id: str = "stream_id"
    heartbeat_id: str = "heartbeat_id"

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        usual = beat.rfc_3339 if beat.is_rfc_3339 else str(beat.event_ms)
        attributes = {
            self.event_time: beat.time_or_spoilt(usual),
            self.stream_id: beat.stream_or_spoilt,
            self.heartbeat_id: beat.heartbeat_id,
        }
        return present(attributes), beat.broken_payload(measurements(beat), b"[21.5]")


def measurements(beat: Beat) -> bytes:
    """What was measured, as a JSON object. Without a status it does not have that name."""
    said = {} if beat.status is None else {"status": beat.status}
    return orjson.dumps({"temperature": beat.temperature, **said, "sequence": beat.sequence})
