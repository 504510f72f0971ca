"""Nested JSON objects, without attributes: a stream of two parts, and compared fields by their paths."""

from dataclasses import dataclass

import orjson

from tidemark.pipeline.demo.shapes.shape import Beat, Shape, present

SITES = ("north", "south", "west")


@dataclass(frozen=True, slots=True)
class Nested(Shape):
    """Each device belongs to a site, and has its name within it."""

    settings = """
[message]
event_time = "payload:meta.at"
stream_id = ["payload:device.site", "payload:device.name"]
publisher_id = "payload:meta.id"

[message.fields]
temperature = { path = "metrics.temperature.celsius", kind = "number" }
status = { path = "metrics.states[-1].text", kind = "text" }
"""

    def said(self, beat: Beat) -> Beat:
        return beat._replace(stream=f"{SITES[int(beat.stream[-5:]) % len(SITES)]}/{beat.stream}")

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        site, name = beat.stream.split("/")
        usual = beat.rfc_3339 if beat.is_rfc_3339 else beat.event_ms
        spoilt_name = beat.stream_or_spoilt and name  # absent or empty where the stream is to be
        last = [] if beat.status is None else [{"text": beat.status}]
        payload = {
            "meta": present({"at": beat.time_or_spoilt(usual), "id": beat.heartbeat_id, "sequence": beat.sequence}),
            "device": present({"site": site, "name": spoilt_name}),
            "metrics": {"temperature": {"celsius": beat.temperature}, "states": [{"text": None}, *last]},
        }
        return {}, beat.broken_payload(orjson.dumps(payload), b"null")
