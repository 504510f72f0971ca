"""Message shapes with JSON payloads, and a shape with all values in attributes."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidemark.local.demo.shapes.shape import REASONS, SAME_NAMES, Beat, Message, Shape, present
from tidemark.pipeline.contract.heartbeat import RejectionReason

SITES = ("north", "south", "west")

LONGEST = 5
"""Maximum number of readings in a message of the shape Arrays. The message then stays under a kilobyte."""


@dataclass(frozen=True, slots=True)
class JsonObject(Shape):
    """The default shape. The payload is a JSON object. Event time, stream and id are attributes, whose names can be
    chosen."""

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
        attributes = {
            self.event_time: beat.time_or_spoilt(str(beat.time)),
            self.stream_id: beat.stream_or_spoilt,
            self.heartbeat_id: beat.heartbeat_id,
        }
        return present(attributes), beat.broken_payload(measurements(beat), b"[21.5]")


def measurements(beat: Beat) -> bytes:
    """Return a heartbeat's measurements as a JSON object."""
    said = {} if beat.status is None else {"status": beat.status}
    return orjson.dumps({"temperature": beat.temperature, **said, "sequence": beat.sequence})


class Nested(Shape):
    """Nested JSON objects, without attributes. A stream is a device at a site. The device's name is unique only within
    its site."""

    settings = """
[message]
event_time = "payload:meta.at"
stream_id = ["payload:device.site", "payload:device.name"]
publisher_id = "payload:meta.id"

[message.fields]
temperature = { path = "metrics.temperature.celsius", kind = "number" }
status = { path = "metrics.states[-1].text", kind = "text" }
"""

    def expressible(self, beat: Beat) -> Beat:
        return beat._replace(stream=f"{SITES[int(beat.stream[-5:]) % len(SITES)]}/{beat.stream}")

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        site, name = beat.stream.split("/")
        spoilt_name = beat.stream_or_spoilt and name  # absent or empty if the stream is meant to be
        last = [] if beat.status is None else [{"text": beat.status}]
        payload = {
            "meta": present({"at": beat.time_or_spoilt(beat.time), "id": beat.heartbeat_id, "sequence": beat.sequence}),
            "device": present({"site": site, "name": spoilt_name}),
            "metrics": {"temperature": {"celsius": beat.temperature}, "states": [{"text": None}, *last]},
        }
        return {}, beat.broken_payload(orjson.dumps(payload), b"null")


class Seconds(Shape):
    """A flat JSON object. The event time is a number of seconds such as 1795238400.25."""

    settings = f"""
[message]
event_time = "payload:ts"
event_time_unit = "s"
stream_id = "payload:sensor"
publisher_id = "payload:id"
{SAME_NAMES}"""

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        time = beat.time_or_spoilt(beat.event_ms / 1000)
        payload = {"ts": time, "sensor": beat.stream_or_spoilt, **beat.rest}
        return {}, beat.broken_payload(orjson.dumps(present(payload)), b'"21.5"')


class AttributesShape(Shape):
    """A shape without payload, whose values are all attributes. If a temperature is text, it gets a unit, because
    digits alone would be read as a number."""

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
            "event_time": beat.time_or_spoilt(str(beat.time)),
            "stream_id": beat.stream_or_spoilt,
            "heartbeat_id": beat.heartbeat_id,
            "temperature": f"{temperature} C" if isinstance(temperature, str) else temperature and str(temperature),
            "status": beat.status,
        }
        return present(attributes), b""


class Arrays(Shape):
    """Several readings per message, as an array in the order of publication.

    A message has at most one broken reading, because a message gets only one reason in quarantine. The other
    readings land.
    """

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
    return present({"at": beat.time_or_spoilt(beat.time), "device": beat.stream_or_spoilt, **beat.rest})


def _grouped(beats: Sequence[Beat]) -> Iterator[list[Beat]]:
    """Yield the heartbeats of each message. If a payload is meant to be unreadable, its message has only one
    heartbeat."""
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


PLAIN = JsonObject()


class Gzipped(Shape):
    """A compressed JSON object. Every other message of a stream names the compression in an attribute. In the others,
    only the first bytes of the payload show that it is compressed."""

    settings = PLAIN.settings

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        whole = beat._replace(broken=None) if beat.broken is RejectionReason.UNREADABLE_PAYLOAD else beat
        attributes, payload = PLAIN.encode(whole)
        said = {"content-encoding": "gzip"} if beat.sequence % 2 else {}
        packed = gzip.compress(payload, mtime=0)
        return {**attributes, **said}, beat.broken_payload(packed, gzip.compress(b"[21.5]", mtime=0))


class CloudEvents(Shape):
    """CloudEvents in both modes of their Pub/Sub binding. A stream's messages alternate between structured and binary
    mode."""

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
