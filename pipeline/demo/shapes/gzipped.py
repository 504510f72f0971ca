"""A JSON object, compressed."""

import gzip
from dataclasses import dataclass

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.demo.shapes.json_object import JsonObject
from tidemark.pipeline.demo.shapes.shape import Beat, Shape

PLAIN = JsonObject()


@dataclass(frozen=True, slots=True)
class Gzipped(Shape):
    """Every other beat of a stream says so in an attribute, the others by their first bytes alone."""

    settings = PLAIN.settings

    def encode(self, beat: Beat) -> tuple[dict[str, str], bytes]:
        whole = beat._replace(broken=None) if beat.broken is RejectionReason.UNREADABLE_PAYLOAD else beat
        attributes, payload = PLAIN.encode(whole)
        said = {"content-encoding": "gzip"} if beat.sequence % 2 else {}
        packed = gzip.compress(payload, mtime=0)
        return {**attributes, **said}, beat.broken_payload(packed, gzip.compress(b"[21.5]", mtime=0))
