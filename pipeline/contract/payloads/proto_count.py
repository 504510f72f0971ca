"""Counting the values of a protobuf message on the wire, before the library makes an object of each submessage."""

from typing import Any, NamedTuple

from tidemark.pipeline.contract.payloads.bounds import MOST_VALUES, Budget

LEAST_BYTES = 2
"""Bytes of a submessage: its tag and its length."""

VARINT, EIGHT, LENGTH, BEGIN, END, FOUR = range(6)
"""How a value is written on the wire."""

ENDS = bytes(range(128, 256))
"""Bytes that do not end a number."""


class Shape(NamedTuple):
    """A message type: its number of fields, the shapes of those that hold messages, and the repeated fields of
    numbers, with the bytes of each number; 0 where that differs."""

    fields: int
    messages: dict[int, "Shape"]
    packed: dict[int, int]


WIDTHS = {1: 8, 2: 4, 6: 8, 7: 4, 15: 4, 16: 8}
"""Bytes of the types of numbers that always take as many."""


def shape_of(descriptor: Any, known: dict[str, Shape] | None = None) -> Shape:
    """The shape of a message type, which may hold itself."""
    known = {} if known is None else known
    if descriptor.full_name not in known:
        made = known[descriptor.full_name] = Shape(len(descriptor.fields), {}, {})
        for field in descriptor.fields:
            if field.message_type is not None:
                made.messages[field.number] = shape_of(field.message_type, known)
            elif field.is_repeated and field.cpp_type != field.CPPTYPE_STRING:
                made.packed[field.number] = WIDTHS.get(field.type, 0)
    return known[descriptor.full_name]


def widest(shape: Shape, seen: set[int] | None = None) -> int:
    """The most values of one message of a type, or of one that it holds, without what these hold: each field is one."""
    seen = set() if seen is None else seen
    if id(shape) in seen:
        return 0
    seen.add(id(shape))
    return max([shape.fields + 1, *(widest(inner, seen) for inner in shape.messages.values())])


def refuse_many_values_on_the_wire(data: bytes, shape: Shape, most: int) -> None:
    """Raise TooMany for a message of too many values, of which each submessage makes `most` at most. Bytes that are no
    message are left to who reads them: what comes before the fault is bounded."""
    if len(data) // LEAST_BYTES * most > MOST_VALUES:
        _walk(data, 0, len(data), shape, Budget())


def _walk(data: bytes, at: int, end: int, shape: Shape, budget: Budget) -> int:
    """Count the fields in `[at, end)`. Gives where it came to: `end`, the end of a group, or a fault."""
    budget.take(shape.fields + 1)
    try:
        while at < end:
            tag, at = _number(data, at)
            number, how = tag >> 3, tag & 7
            if how == LENGTH:
                size, at = _number(data, at)
                stop = min(at + size, end)
                if number in shape.messages:
                    _walk(data, at, stop, shape.messages[number], budget)
                elif number in shape.packed:
                    width = shape.packed[number]
                    budget.take((stop - at) // width if width else len(data[at:stop].translate(None, ENDS)))
                else:
                    budget.take(1)
                at = stop
            elif how == BEGIN:
                at = _walk(data, at, end, shape.messages.get(number, UNKNOWN), budget)
            elif how == VARINT:
                budget.take(1)
                _, at = _number(data, at)
            elif how in (EIGHT, FOUR):
                budget.take(1)
                at += 8 if how == EIGHT else 4
            else:
                return at
    except IndexError:
        return end
    return at


UNKNOWN = Shape(0, {}, {})
"""A group that no type names."""


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80 and shift < 63:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | byte << shift, at + 1
