"""Protobuf messages as plain values, under the names of the .proto file.

They differ from protobuf's own JSON form in what serves a comparison: a 64-bit integer is a number, a field without
presence has its default, and what is absent or no number is null.
"""

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format

from tidemark.pipeline.contract.payloads.bounds import Budget

BYTES_A_VALUE = 2
"""The least bytes of a value in a google.protobuf.Struct."""


class MessageValues:
    """Converts the messages of one type. It looks at the type's descriptor once."""

    def __init__(self, descriptor: Any, known: dict[str, "MessageValues"]) -> None:
        known[descriptor.full_name] = self  # first, as a type may hold itself
        self._fields = [_Field(field, known) for field in descriptor.fields]

    def of(self, message: Any, budget: Budget) -> dict[str, Any]:
        """The message's fields by name. Raises TooMany, TooDeep, and ValueError for a time out of range."""
        budget.take(len(self._fields))
        budget.enter()
        value = {field.name: field.of(message, budget) for field in self._fields}
        budget.leave()
        return value


class _Field:
    """One field of a type: how its value is looked up and converted."""

    def __init__(self, field: Any, known: dict[str, MessageValues]) -> None:
        self.name: str = field.name
        self._has_presence = field.has_presence
        self._is_repeated = field.is_repeated
        entry = field.message_type
        self._is_map = entry is not None and entry.GetOptions().map_entry
        self._one = _converter(entry.fields_by_name["value"] if self._is_map else field, known)

    def of(self, message: Any, budget: Budget) -> Any:
        if self._has_presence and not message.HasField(self.name):
            return None
        value = getattr(message, self.name)
        if self._is_map:
            budget.take(len(value))
            return {_key(key): self._one(value[key], budget) for key in value}
        if self._is_repeated:
            budget.take(len(value))
            return [self._one(one, budget) for one in value]
        return self._one(value, budget)


def _key(key: Any) -> str:
    return ("false", "true")[key] if isinstance(key, bool) else str(key)


def _converter(field: Any, known: dict[str, MessageValues]) -> Callable[[Any, Budget], Any]:
    kind = field.message_type
    if kind is not None:
        if kind.full_name in WELL_KNOWN:
            return WELL_KNOWN[kind.full_name]
        values = known.get(kind.full_name) or MessageValues(kind, known)
        return values.of
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number, _: names[number].name if number in names else number
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return _finite
    return _base64 if field.type == field.TYPE_BYTES else _itself


def _itself(value: Any, _: Budget) -> Any:
    return value


def _finite(value: float, _: Budget) -> float | None:
    return value if math.isfinite(value) else None


def _base64(value: bytes, _: Budget) -> str:
    return base64.b64encode(value).decode()


def _text(message: Any, _: Budget) -> str:
    return str(message.ToJsonString())


def _free(message: Any, budget: Budget) -> Any:
    budget.take(message.ByteSize() // BYTES_A_VALUE)
    return json_format.MessageToDict(message)


def _wrapped(convert: Callable[[Any, Budget], Any]) -> Callable[[Any, Budget], Any]:
    return lambda message, budget: convert(message.value, budget)


WELL_KNOWN: Mapping[str, Callable[[Any, Budget], Any]] = {
    "google.protobuf.Timestamp": _text,
    "google.protobuf.Duration": _text,
    "google.protobuf.FieldMask": _text,
    "google.protobuf.Struct": _free,
    "google.protobuf.Value": _free,
    "google.protobuf.ListValue": _free,
    "google.protobuf.DoubleValue": _wrapped(_finite),
    "google.protobuf.FloatValue": _wrapped(_finite),
    "google.protobuf.BytesValue": _wrapped(_base64),
    **{
        f"google.protobuf.{name}Value": _wrapped(_itself)
        for name in ("Int32", "Int64", "UInt32", "UInt64", "Bool", "String")
    },
}
"""Protobuf's own types that stand for one value. Any is read as what it is made of."""
