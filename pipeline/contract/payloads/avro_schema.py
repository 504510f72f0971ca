"""Avro schemas, checked and made ready: what hostile bytes could abuse is refused, and values that JSON has no form for
get a reader."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from tidemark.pipeline.contract.payloads.avro_values import MOST_DIGITS, OF_LOGICAL, OF_TYPE, OWN
from tidemark.pipeline.contract.payloads.bounds import DEEPEST
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.rejections import Unreadable

MOST_VALUES_A_BYTE = 100
"""Values that a byte of a payload may stand for. An array of nulls, which is as long as its first bytes say,
makes more."""

MOST_OF_A_RECORD = 10_000
"""Values of a record that has no array and no map."""

LEAST_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""The least bytes of each primitive type."""

BROKEN = (
    SchemaParseException,
    UnknownType,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What fastavro raises for a schema that is none."""

Sizes = tuple[int, int]
"""The least bytes of a value, and how many values it is made of."""


def ready_schema(definition: Definition) -> tuple[Any, float]:
    """The schema as fastavro reads by it, and the most values that one byte of a payload may make beyond
    MOST_OF_A_RECORD. Raises Unreadable for one that is not a record, is recursive, or makes many values of few
    bytes."""
    checking = _Checking(definition.origin)
    try:
        schema = parse_schema(orjson.loads(definition.content), named_schemas={}, _write_hint=False)
        checked, _ = checking.checked(schema, 0)
        if not isinstance(checked, dict) or checked["type"] not in ("record", "error"):
            raise checking.refusal("is not a record")
        return parse_schema(checked, named_schemas={}), checking.densest
    except BROKEN as error:
        raise Unreadable(f"the schema {definition.origin} is not Avro's: {error!r}"[:300]) from error


class _Checking:
    """One walk over a parsed schema, in which every name is full. It writes a schema with our own readers."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._sizes: dict[str, Sizes | None] = {}  # None: begun
        self.densest = 0.0

    def refusal(self, why: str) -> Unreadable:
        return Unreadable(f"the schema {self._origin} {why}, and is not used")

    def checked(self, schema: Any, depth: int) -> tuple[Any, Sizes]:
        if depth > DEEPEST:
            raise self.refusal(f"has more than {DEEPEST} levels")
        if isinstance(schema, list):
            if not schema or any(isinstance(branch, list) for branch in schema):
                raise self.refusal("has a union of nothing, or of unions")
            branches = [self.checked(branch, depth + 1) for branch in schema]
            sizes = [size for _, size in branches]
            return [branch for branch, _ in branches], (
                1 + min(least for least, _ in sizes),
                max(values for _, values in sizes),
            )
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list | dict):
            return self.checked(kind, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(schema, kind, depth)
        if kind == "array":
            items, size = self.checked(schema["items"], depth + 1)
            return {"type": "array", "items": items}, self._repeated(*size)
        if kind == "map":
            values, (least, count) = self.checked(schema["values"], depth + 1)
            return {"type": "map", "values": values}, self._repeated(least + 1, count + 1)
        if kind in LEAST_BYTES:
            return self._primitive(schema, kind), (LEAST_BYTES[kind], 1)
        return kind, self._known(kind)

    def _known(self, name: str) -> Sizes:
        size = self._sizes[name]
        if size is None:
            raise self.refusal(f"is recursive: {name} holds itself")
        return size

    def _repeated(self, least: int, values: int) -> Sizes:
        if values > MOST_VALUES_A_BYTE * least:
            raise self.refusal(f"repeats what makes more than {MOST_VALUES_A_BYTE} values of each byte")
        self.densest = max(self.densest, values / least)
        return 1, 1

    def _named(self, schema: Mapping[str, Any], kind: str, depth: int) -> tuple[Any, Sizes]:
        name = schema["name"]
        self._sizes[name] = None
        size: Sizes
        if kind == "enum":
            made, size = {"type": kind, "name": name, "symbols": schema["symbols"]}, (1, 1)
        elif kind == "fixed":
            made = {"type": kind, "name": name, "size": schema["size"], **self._reader(schema, kind)}
            size = max(0, schema["size"]), 1
        else:
            fields = [(field["name"], self.checked(field["type"], depth + 1)) for field in schema["fields"]]
            made = {"type": kind, "name": name, "fields": [{"name": one, "type": it} for one, (it, _) in fields]}
            size = sum(least for _, (_, (least, _)) in fields), 1 + sum(values for _, (_, (_, values)) in fields)
            if size[1] > MOST_OF_A_RECORD:
                raise self.refusal(f"makes more than {MOST_OF_A_RECORD} values of one record")
        self._sizes[name] = size
        return made, size

    def _primitive(self, schema: Any, kind: str) -> Any:
        reader = self._reader(schema if isinstance(schema, dict) else {}, kind)
        return {"type": kind, **reader} if reader else kind

    @staticmethod
    def _reader(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
        reader = OF_LOGICAL.get((kind, str(schema.get("logicalType"))), OF_TYPE.get(kind))
        if reader == "decimal":
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if not (type(precision) is type(scale) is int and 0 <= scale <= precision <= MOST_DIGITS):
                return {"logicalType": OWN + OF_TYPE[kind]}
            return {"logicalType": f"{OWN}decimal", "precision": precision, "scale": scale}
        return {"logicalType": OWN + reader} if reader else {}
