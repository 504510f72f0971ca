"""Encodes the answer of a pull as bytes, because copying messages into a protobuf answer takes three times as long.

The layout is that of `google.pubsub.v1.PullResponse`. Field 1 of the answer is a received message. In the received
message, field 1 is the ack id, and field 2 is the message itself.
"""

from collections.abc import Iterable
from functools import lru_cache

from tidemark.local.emulator.unacknowledged import Delivered

FIRST, SECOND = b"\x0a", b"\x12"
"""The tags of the protobuf fields 1 and 2. A tag is followed by a length, and by that number of bytes."""


def pull_response(delivered: Iterable[Delivered]) -> bytes:
    """Encode the answer of a pull with these messages, in order."""
    pieces: list[bytes] = []
    for one in delivered:
        ack_id = one.ack_id.encode()
        message = one.message.SerializeToString()
        received = b"".join((FIRST, varint(len(ack_id)), ack_id, SECOND, varint(len(message)), message))
        pieces += (FIRST, varint(len(received)), received)
    return b"".join(pieces)


@lru_cache(1 << 14)
def varint(number: int) -> bytes:
    """Encode a number as a protobuf varint: seven bits per byte, lowest first."""
    written = bytearray()
    while number >= 1 << 7:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
