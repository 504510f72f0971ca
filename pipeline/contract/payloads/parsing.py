"""Decompresses and parses one payload, within limits.

The limits depend only on the bytes of the payload. They are checked before a parser creates objects from the bytes.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Any

import orjson

from tidemark.pipeline.contract.payloads.rejections import Unreadable

MOST_VALUES = 1_000_000
"""Maximum number of values in one payload. Numbers, strings, objects and arrays count as values. A value takes up to
about 300 bytes as a Python object."""

DEEPEST = 64
"""Maximum number of levels in a schema, and so in its values. Reason: the code that reads them recurses."""

TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Matches a JSON string, or an unterminated one up to the end of the payload. It does not backtrack, so the time is
linear for any bytes."""

MAGIC = b"\x1f\x8b\x08"
"""First bytes of gzip data; the third names deflate, gzip's only method. JSON and protobuf never begin with them."""

LARGEST_MESSAGE = 10_000_000
"""Maximum size of a message in Pub/Sub, in bytes."""

LARGEST = 4 * LARGEST_MESSAGE
"""Maximum size of a decompressed payload in bytes. Telemetry compresses to a tenth at best, so compressed payloads
of 4 MB still fit. Larger compressed payloads are rare."""

AT_ONCE = 1 << 20
"""Maximum number of bytes that are decompressed in one step. Reason: if gzip data is invalid, zlib does not say how
many bytes its last step produced, so they are not counted."""

MOST_MEMBERS = 16
"""Maximum number of members in a gzip stream. Publishers write one member. Many small members would take
quadratic time, because reading a member copies all bytes that follow it."""


class ValueBudget:
    """The number of values that one payload may still have."""

    def __init__(self) -> None:
        self.left = MOST_VALUES

    def take(self, values: int) -> None:
        """Subtract `values` from the values that the payload may still have. Raises Unreadable if too few are left."""
        self.left -= values
        if self.left < 0:
            raise Unreadable(f"more than {MOST_VALUES} values")


def inflated(data: bytes) -> Iterator[bytes]:
    """Decompress gzip data, and yield the result in parts of at most `AT_ONCE` bytes. Raises Unreadable if the data is
    invalid or incomplete, has more than `MOST_MEMBERS` members, or yields more than `LARGEST` bytes."""
    room = LARGEST
    for _ in range(MOST_MEMBERS):
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while not stream.eof:
            most = min(AT_ONCE, room + 1)
            try:
                part = stream.decompress(data, most)
            except zlib.error as error:
                raise Unreadable(f"not gzip: {error}") from error
            yield part
            data, room = stream.unconsumed_tail, room - len(part)
            if room < 0:
                raise Unreadable(f"the decompressed gzip data is larger than {LARGEST} bytes")
            if len(part) < most and not stream.eof:
                raise Unreadable("truncated gzip")
        data = stream.unused_data
        if not data:
            return
    raise Unreadable(f"the gzip data has more than {MOST_MEMBERS} members")


def parsed(data: bytes) -> Any:
    """Parse a JSON value of any type. Raises Unreadable for invalid JSON, or more than `MOST_VALUES` values."""
    if len(data) > MOST_VALUES:
        refuse_many_values(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error


def as_object(value: Any, *, may_be_array: bool = False) -> Any:
    """Return a parsed JSON value if it is an object or, with `may_be_array`, an array. Raises Unreadable otherwise."""
    if type(value) is not dict and not (may_be_array and type(value) is list):
        raise Unreadable(f"the payload is {json_kind(value)}, not an object")
    return value


def quoted(value: str) -> str:
    """Shorten a string from a message to 80 characters, then quote and escape it."""
    return repr(value if len(value) <= 80 else value[:77] + "...")


def json_kind(value: Any) -> str:
    """Return the JSON type of a parsed value in words, such as "an array"."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return kinds.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


def refuse_many_values(text: bytes, an_object: int = 1) -> None:
    """Raise Unreadable if a JSON text has more than `MOST_VALUES` values. Each object counts as `an_object` values.

    Each element or member follows a comma, `[` or `{`, so these characters are counted, except in strings.
    """
    if len(text) * an_object > MOST_VALUES and _values(text, an_object) > MOST_VALUES:
        ValueBudget().take(_values(TEXT.sub(b'""', text), an_object))


def _values(text: bytes, an_object: int) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{") * an_object
