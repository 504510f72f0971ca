"""Avro's own JSON encoding, in which a union's value names its branch.

fastavro's decoder of it takes values of any type, and time by the square of an array's length.
"""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from tidemark.pipeline.contract.payloads.avro_values import OWN, READERS

Read = Callable[[Any], Any]

NOT_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})
"""How Avro writes what JSON has no number for."""


def json_reader(schema: Any, named: dict[str, Read] | None = None) -> Read:
    """A function from a parsed JSON value to the value that its binary form would give. It raises ValueError.

    `schema` is ready, and so not recursive. `named` are the readers of its named types so far.
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        return _union({_label(branch): json_reader(branch, named) for branch in schema})
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "error"):
        fields = [(field["name"], json_reader(field["type"], named)) for field in schema["fields"]]
        read = named[schema["name"]] = _record(fields)
        return read
    if kind == "array":
        return _array(json_reader(schema["items"], named))
    if kind == "map":
        return _map(json_reader(schema["values"], named))
    if kind == "enum":
        read = named[schema["name"]] = _enum(frozenset(schema["symbols"]))
        return read
    if kind == "fixed":
        read = named[schema["name"]] = _logical(_fixed(schema["size"]), schema)
        return read
    return _logical(PRIMITIVES[kind], schema) if kind in PRIMITIVES else named[kind]


def _label(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    kind: str = branch["type"]
    return str(branch["name"]) if kind in ("record", "error", "enum", "fixed") else kind


def _logical(read: Read, schema: Any) -> Read:
    logical = schema.get("logicalType") if isinstance(schema, Mapping) else None
    if not logical:
        return read
    reader = READERS[logical.removeprefix(OWN)]
    return lambda value: reader(read(value), schema)


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(value: Any) -> Any:
        held = _of(dict, value, "a record")
        return {name: reader(held[name]) if name in held else None for name, reader in fields}

    return read


def _union(branches: Mapping[str, Read]) -> Read:
    def read(value: Any) -> Any:
        if value is None:
            if "null" not in branches:
                raise ValueError("null where no null may be")
            return None
        if not isinstance(value, dict) or len(value) != 1 or (label := next(iter(value))) not in branches:
            raise ValueError(f"a union's value is written as an object with its type, one of {', '.join(branches)}")
        return branches[label](value[label])

    return read


def _array(item: Read) -> Read:
    return lambda value: [item(one) for one in _of(list, value, "an array")]


def _map(item: Read) -> Read:
    return lambda value: {key: item(one) for key, one in _of(dict, value, "a map").items()}


def _enum(symbols: frozenset[str]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise ValueError("a text that is no symbol of its enum")
        return value

    return read


def _fixed(size: int) -> Read:
    def read(value: Any) -> Any:
        held = _bytes(value)
        if len(held) != size:
            raise ValueError(f"{len(held)} bytes where {size} belong")
        return held

    return read


def _of(kind: type, value: Any, words: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} where {words} belongs")
    return value


def _whole(bits: int) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not int or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise ValueError(f"a {type(value).__name__} where a whole number of {bits} bits belongs")
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, str) and value in NOT_NUMBERS:
        return float(value)
    if type(value) not in (int, float):
        raise ValueError(f"a {type(value).__name__} where a number belongs")
    return float(value)


def _bytes(value: Any) -> bytes:
    return str(_of(str, value, "a text that stands for bytes")).encode("latin-1")


PRIMITIVES: Mapping[str, Read] = {
    "null": lambda value: _of(NoneType, value, "null"),
    "boolean": lambda value: _of(bool, value, "a boolean"),
    "int": _whole(32),
    "long": _whole(64),
    "float": _number,
    "double": _number,
    "bytes": _bytes,
    "string": lambda value: _of(str, value, "a text"),
}
