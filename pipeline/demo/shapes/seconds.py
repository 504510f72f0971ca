"""A flat JSON object with the event time in fractional seconds."""

from dataclasses import dataclass

import orjson

from tidemark.pipeline.demo.shapes.shape import SAME_NAMES, Beat, Shape, present


@dataclass(frozen=True, slots=True)
class Seconds(Shape):
    """The event time is a number such as 1795238400.25, as `time.time()` gives it."""

    settings = f"""
[message]
event_time = "payload:ts"
event_time_unit = "s"
stream_id = "payload:sensor"
publisher_id = "payload:id"
{SAME_NAMES}"""

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        payload = {
            "ts": beat.time_or_spoilt(beat.event_ms / 1000),
            "sensor": beat.stream_or_spoilt,
            "id": beat.heartbeat_id,
            "temperature": beat.temperature,
            "status": beat.status,
        }
        return {}, beat.broken_payload(orjson.dumps(present(payload)), b'"21.5"')
