"""CloudEvents, in both modes of their Pub/Sub binding."""

from dataclasses import dataclass

import orjson

from tidemark.pipeline.demo.shapes.json_object import measurements
from tidemark.pipeline.demo.shapes.shape import SAME_NAMES, Beat, Shape, present


@dataclass(frozen=True, slots=True)
class CloudEvents(Shape):
    """Every other beat of a stream is structured, the others binary."""

    settings = f"""
[message]
envelope = "cloudevents"
event_time = "attribute:ce-time"
stream_id = "attribute:ce-source"
publisher_id = "attribute:ce-id"
{SAME_NAMES}"""

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        data = measurements(beat)
        context = present(
            {
                "specversion": "1.0",
                "type": "beat",
                "id": beat.heartbeat_id,
                "source": beat.stream_or_spoilt,
                "time": beat.time_or_spoilt(beat.rfc_3339),
            }
        )
        if beat.sequence % 2:
            attributes = {"content-type": "application/cloudevents+json"}
            payload = orjson.dumps({**context, "data": orjson.Fragment(data)})
        else:
            attributes = {"content-type": "application/json", **{f"ce-{name}": said for name, said in context.items()}}
            payload = data
        return attributes, beat.broken_payload(payload, b"[21.5]")
