"""Counting the values of an Avro record before it is decoded: fastavro takes a number of elements at its word."""

from collections.abc import Callable
from typing import Any

from tidemark.pipeline.contract.payloads.avro_schema import MOST_OF_A_RECORD
from tidemark.pipeline.contract.payloads.bounds import MOST_VALUES, Budget, TooMany

Walk = Callable[[bytes, int, Budget], int]
"""Counts the value that begins at a position, and gives the position after it. It raises TooMany, and IndexError or
ValueError where the bytes are no such value."""

LONGEST = 63
"""The last shift of a number of 64 bits."""

FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def counter_of(schema: Any, values_a_byte: float) -> Callable[[bytes], None]:
    """A function that raises TooMany for bytes that hold too many values, and IndexError or ValueError for some that
    are no record. `schema` is ready, and so not recursive; `values_a_byte` is what else is known of it."""
    walk = _walk(schema, {})

    def count(data: bytes) -> None:
        if len(data) * values_a_byte > MOST_VALUES - MOST_OF_A_RECORD:
            walk(data, 0, Budget())

    return count


def _walk(schema: Any, named: dict[str, Walk]) -> Walk:
    if isinstance(schema, list):
        return _union([_walk(branch, named) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "error"):
        walk = named[schema["name"]] = _record([_walk(field["type"], named) for field in schema["fields"]])
        return walk
    if kind == "array":
        return _blocks(_walk(schema["items"], named))
    if kind == "map":
        item = _walk(schema["values"], named)
        return _blocks(lambda data, at, budget: item(data, _skipped(data, at, budget), budget))
    if kind == "enum":
        named[schema["name"]] = _varint
        return _varint
    if kind == "fixed":
        walk = named[schema["name"]] = _fixed(schema["size"])
        return walk
    if kind in FIXED_BYTES:
        return _fixed(FIXED_BYTES[kind])
    return {"int": _varint, "long": _varint, "bytes": _skipped, "string": _skipped}.get(kind) or named[kind]


def _long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > LONGEST:
            raise ValueError("a number of more than 64 bits")
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), at + 1


def _varint(data: bytes, at: int, budget: Budget) -> int:
    budget.take(1)
    return _long(data, at)[1]


def _fixed(size: int) -> Walk:
    def walk(_: bytes, at: int, budget: Budget) -> int:
        budget.take(1)
        return at + size

    return walk


def _skipped(data: bytes, at: int, budget: Budget) -> int:
    budget.take(1)
    length, at = _long(data, at)
    if length < 0:
        raise ValueError(f"a length of {length}")
    return at + length


def _record(fields: list[Walk]) -> Walk:
    def walk(data: bytes, at: int, budget: Budget) -> int:
        budget.take(1)
        for field in fields:
            at = field(data, at, budget)
        return at

    return walk


def _union(branches: list[Walk]) -> Walk:
    def walk(data: bytes, at: int, budget: Budget) -> int:
        index, at = _long(data, at)
        if index < 0:
            raise ValueError(f"the branch {index}")
        return branches[index](data, at, budget)

    return walk


def _blocks(item: Walk) -> Walk:
    def walk(data: bytes, at: int, budget: Budget) -> int:
        budget.take(1)
        count, at = _long(data, at)
        while count:
            if count < 0:
                count, at = -count, _long(data, at)[1]
            if count > budget.left:
                raise TooMany
            for _ in range(count):
                at = item(data, at, budget)
            count, at = _long(data, at)
        return at

    return walk
