"""Bounds of one payload, checked before a parser makes objects of it. They depend on its bytes alone."""

import re
import zlib
from typing import Any

import orjson

from tidemark.pipeline.contract.payloads.rejections import Unreadable

MOST_VALUES = 1_000_000
"""Values of one payload: numbers, texts, objects, arrays. As a Python object, a value takes up to some 300 bytes."""

DEEPEST = 64
"""Levels of a schema, and so of its values: their readers recurse."""

TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

MAGIC = b"\x1f\x8b\x08"
"""The first bytes of gzip, with its only method. Neither JSON nor a protobuf message begins with them."""

LARGEST_MESSAGE = 10_000_000
"""Bytes of the largest message that Pub/Sub takes."""

LARGEST = 4 * LARGEST_MESSAGE
"""Bytes of a decompressed payload. Readings compress to a tenth at best, and rarely fill a message."""

MOST_MEMBERS = 16
"""Members of one gzip stream. Publishers write one; each costs a copy of what follows it."""


class TooMany(Unreadable):
    """A payload has more than `MOST_VALUES`."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_VALUES} values")


class TooDeep(Unreadable):
    """A payload has more levels than `DEEPEST`."""

    def __init__(self) -> None:
        super().__init__(f"more than {DEEPEST} levels")


class ValueBudget:
    """The values and levels that one payload may still have."""

    def __init__(self) -> None:
        self.left = MOST_VALUES
        self._deeper = DEEPEST

    def take(self, values: int) -> None:
        """Count values. Raises TooMany."""
        self.left -= values
        if self.left < 0:
            raise TooMany

    def enter(self) -> None:
        """Go a level deeper. Raises TooDeep."""
        self._deeper -= 1
        if self._deeper < 0:
            raise TooDeep

    def leave(self) -> None:
        """Go a level higher."""
        self._deeper += 1


def inflated(data: bytes) -> bytes:
    """Decompress gzip to at most `LARGEST` bytes; no more is ever held. Raises Unreadable."""
    parts: list[bytes] = []
    room = LARGEST
    for _ in range(MOST_MEMBERS):
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            part = stream.decompress(data, room + 1)
        except zlib.error as error:
            raise Unreadable(f"not gzip: {error}") from error
        parts.append(part)
        data, room = stream.unused_data, room - len(part)
        if room < 0:
            raise Unreadable(f"gzip of more than {LARGEST} bytes, which is too large")
        if not stream.eof:
            raise Unreadable("gzip that is cut off")
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise Unreadable(f"gzip of more than {MOST_MEMBERS} members")


def parsed(data: bytes) -> Any:
    """Parse any JSON value. Raises Unreadable."""
    if len(data) > MOST_VALUES:
        refuse_many_values(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error


def as_object(value: Any, *, may_be_array: bool = False) -> Any:
    """Return a parsed value that must be an object, or may be an array. Raises Unreadable."""
    if type(value) is not dict and not (may_be_array and type(value) is list):
        raise Unreadable(f"JSON, but {json_kind(value)}, not an object")
    return value


def json_kind(value: Any) -> str:
    """Name the type of a parsed value in JSON's words."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return kinds.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


def refuse_many_values(text: bytes, an_object: int = 1) -> None:
    """Raise TooMany for a JSON text of too many values, where each object counts as `an_object` values.

    A value follows a comma or an opening bracket, so these are counted, without what is quoted.
    """
    if len(text) * an_object <= MOST_VALUES or _values(text, an_object) <= MOST_VALUES:
        return
    if _values(TEXT.sub(b'""', text), an_object) > MOST_VALUES:
        raise TooMany


def _values(text: bytes, an_object: int) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{") * an_object
