"""Decompressing one payload, within bounds on memory and time."""

import zlib

from tidemark.pipeline.contract.payloads.rejections import Unreadable

MAGIC = b"\x1f\x8b\x08"
"""The first bytes of gzip, with its only method. No JSON text and no protobuf message begins with them."""

LARGEST_MESSAGE = 10_000_000
"""Bytes of the largest message that Pub/Sub takes."""

LARGEST = 4 * LARGEST_MESSAGE
"""Bytes that one payload may have once it is decompressed. Readings compress to a tenth at best, and rarely fill a
message."""

MOST_MEMBERS = 16
"""Members of one gzip stream. Publishers write one; each costs a copy of what follows it."""


def inflated(data: bytes) -> bytes:
    """The decompressed payload, of at most `LARGEST` bytes; no more is ever held. Raises Unreadable."""
    parts: list[bytes] = []
    room = LARGEST
    for _ in range(MOST_MEMBERS):
        part, data = _member(data, room)
        parts.append(part)
        room -= len(part)
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise Unreadable(f"gzip of more than {MOST_MEMBERS} members")


def _member(data: bytes, room: int) -> tuple[bytes, bytes]:
    """One member's content, and what follows it."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        part = stream.decompress(data, room + 1)
    except zlib.error as error:
        raise Unreadable(f"not gzip: {error}") from error
    if len(part) > room:
        raise Unreadable(f"gzip of more than {LARGEST} bytes, which is too large")
    if not stream.eof:
        raise Unreadable("gzip that is cut off")
    return part, stream.unused_data
