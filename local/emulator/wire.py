"""Writes a pull's answer as bytes. Copying the messages into a protobuf answer costs three times as much.

The layout is that of `google.pubsub.v1.PullResponse`: field 1 of the answer is a received message, whose field 1 is the
acknowledgement id and whose field 2 is the message.
"""

from collections.abc import Iterable

from tidemark.local.emulator.unacknowledged import Delivered

FIRST, SECOND = b"\x0a", b"\x12"
"""The tags of fields 1 and 2, each followed by a length and so many bytes."""


def pull_response(delivered: Iterable[Delivered]) -> bytes:
    """The answer with these messages, in order."""
    pieces: list[bytes] = []
    for one in delivered:
        ack_id = one.ack_id.encode()
        message = one.message.SerializeToString()
        received = b"".join((FIRST, length(ack_id), ack_id, SECOND, length(message), message))
        pieces += (FIRST, length(received), received)
    return b"".join(pieces)


def length(body: bytes) -> bytes:
    """The length of `body` as a varint."""
    left = len(body)
    if left < 1 << 14:  # almost always
        return _SHORT[left]
    written = bytearray()
    while left >= 1 << 7:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


_SHORT = [bytes((n,)) if n < 1 << 7 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 14)]
