"""Decodes payloads that are Avro records, in Avro's binary or JSON encoding.

Values that JSON cannot represent are converted: times to text as in RFC 3339, bytes to base64, decimals to numbers or
text, NaN and infinity to null. tidemark gives each of these types a private logical type, and registers a converter for
it. fastavro calls the converters while it reads.

fastavro trusts the counts in the bytes. So this module counts values before fastavro reads them, and refuses schemas
that allow many values in few bytes. It does not use fastavro's decoder of the JSON encoding, because that decoder
accepts values of any type, and takes time quadratic in the length of an array.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import orjson
from fastavro import block_reader, schemaless_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from tidemark.pipeline.contract.payloads.parsing import DEEPEST, MOST_VALUES, ValueBudget, parsed
from tidemark.pipeline.contract.payloads.rejections import Unreadable
from tidemark.pipeline.contract.payloads.schemas import CONTAINER, Definition, Encoding, as_base64, finite, varint

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (the zone, if any, is appended as text)
OWN, PLAIN = "tidemark-", "plain"
MOST_DIGITS = 1000
"""Maximum number of digits of a decimal type. A type with more digits is read as bytes, as the specification requires
for invalid logical types."""

DECIMALS = Context(prec=MOST_DIGITS)
LONGEST_DECIMAL = 416
"""Maximum number of bytes of a decimal. It is enough for MOST_DIGITS digits. Reading a decimal takes time quadratic in
its length."""


def _written(microseconds: int, after: str = "") -> str:
    """Format microseconds since the epoch as RFC 3339, and append `after`, which is a zone or further digits."""
    return (EPOCH + timedelta(0, 0, microseconds)).isoformat("T", "microseconds") + after


def _nanos(value: int) -> str:
    return _written(value // 1000, f"{value % 1000:03d}" if value % 1000 else "")


def _date(value: int, *_: Any) -> str:
    return date.fromordinal(EPOCH.toordinal() + value).isoformat()


def _time(microseconds: int) -> str:
    if not 0 <= microseconds < 86_400_000_000:
        raise ValueError(f"{microseconds} microseconds is not a time of day")
    return (EPOCH + timedelta(microseconds=microseconds)).time().isoformat()


def plain_number(value: Decimal) -> int | float | str:
    """Return a decimal as a number if a JSON number represents it exactly, otherwise as text."""
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    number = float(value)
    return number if math.isfinite(number) and Decimal(repr(number)) == value else format(value, "f")


def _decimal(value: bytes, schema: Mapping[str, Any], *_: Any) -> int | float | str:
    if len(value) > LONGEST_DECIMAL:
        raise ValueError(f"a decimal has {len(value)} bytes; the maximum is {LONGEST_DECIMAL}")
    unscaled = Decimal(int.from_bytes(value, "big", signed=True))
    return plain_number(unscaled.scaleb(-schema.get("scale", 0), DECIMALS))


CONVERTERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("long", "timestamp-millis"): lambda value, *_: _written(value * 1000, "Z"),
    ("long", "timestamp-micros"): lambda value, *_: _written(value, "Z"),
    ("long", "timestamp-nanos"): lambda value, *_: _nanos(value) + "Z",
    ("long", "local-timestamp-millis"): lambda value, *_: _written(value * 1000),
    ("long", "local-timestamp-micros"): lambda value, *_: _written(value),
    ("long", "local-timestamp-nanos"): lambda value, *_: _nanos(value),
    ("int", "date"): _date,
    ("int", "time-millis"): lambda value, *_: _time(value * 1000),
    ("long", "time-micros"): lambda value, *_: _time(value),
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("float", PLAIN): finite,
    ("double", PLAIN): finite,
    ("bytes", PLAIN): as_base64,
    ("fixed", PLAIN): as_base64,
}
"""Converters of values, keyed by Avro type and logical type. A UUID needs none, because it is text already. An unknown
logical type is read as its underlying type. fastavro's table of readers is global to the process, so tidemark's
names in it have a prefix that no other code uses."""

LOGICAL_READERS.update({f"{kind}-{OWN}{logical}": convert for (kind, logical), convert in CONVERTERS.items()})

MOST_VALUES_A_BYTE = 100
"""Maximum number of values per byte of a payload. A schema that allows more is refused. Example: an array of nulls,
because a null takes no bytes."""

MOST_OF_A_RECORD = 10_000
"""Maximum number of values in a record, where each array or map counts as one value. A schema that allows more is
refused."""

NOT_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})

BROKEN = (
    *(SchemaParseException, UnknownType),
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)

Walk = Callable[[bytes, int, ValueBudget], int]
"""Function that skips the value at a position in the bytes, and returns the position after the value. All values inside
the skipped one are subtracted from the budget. Raises Unreadable if the budget is exceeded. May raise IndexError or
ValueError if the bytes are not a value of the type."""

Read = Callable[[Any], Any]
"""Function that converts a parsed value of Avro's JSON encoding to the form that the binary encoding gives. Raises
ValueError if the value does not fit the type, and OverflowError if a time is out of range."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A checked type of an Avro schema, with the functions that count and convert its values.

    - `schema` is the schema for fastavro.
    - `least` is the minimum number of bytes of a value of the type.
    - `values` is the maximum number of values that a value of the type contains. An array or map counts as one,
      whatever it contains.
    - `label` is the key of the type in the JSON encoding of a union.
    """

    schema: Any
    least: int
    values: int
    count: Walk
    read: Read
    label: str


class _Checking:
    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._named: dict[str, AvroType | None] = {}  # None: its definition has begun
        self.densest = 0.0

    def refusal(self, why: str) -> Unreadable:
        return Unreadable(f"the schema {self._origin} {why}, so it cannot be used")

    def of(self, schema: Any, depth: int) -> AvroType:
        if depth > DEEPEST:
            raise self.refusal(f"has more than {DEEPEST} levels")
        if isinstance(schema, list):
            return self._union(schema, depth + 1)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list | dict):
            return self.of(kind, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = None
            made = self._named[schema["name"]] = self._define(schema, kind, schema["name"], depth + 1)
            return made
        if kind == "array":
            item = self.of(schema["items"], depth + 1)
            self._repeats(item.values, item.least)
            return AvroType({"type": kind, "items": item.schema}, 1, 1, _blocks(item.count, 1), _array(item.read), kind)
        if kind == "map":
            item = self.of(schema["values"], depth + 1)
            self._repeats(item.values + 1, item.least + 1)
            count = _blocks(lambda data, at, budget: item.count(data, _skipped(data, at, budget), budget), 2)
            return AvroType({"type": kind, "values": item.schema}, 1, 1, count, _map(item.read), kind)
        if kind in PRIMITIVES:
            least, walk, read = PRIMITIVES[kind]
            return _converted(schema if isinstance(schema, dict) else {}, AvroType(kind, least, 1, walk, read, kind))
        known = self._named[kind]
        if known is None:
            raise self.refusal(f"is recursive: {kind} contains itself")
        return replace(known, schema=kind)

    def _repeats(self, values: int, least: int) -> None:
        if values > MOST_VALUES_A_BYTE * least:
            raise self.refusal(f"repeats a type that allows more than {MOST_VALUES_A_BYTE} values per byte")
        self.densest = max(self.densest, values / least)

    def _union(self, schema: list[Any], depth: int) -> AvroType:
        if not schema or any(isinstance(branch, list) for branch in schema):
            raise self.refusal("has a union that is empty or contains a union")
        branches = [self.of(branch, depth) for branch in schema]
        return AvroType(
            [branch.schema for branch in branches],
            1 + min(branch.least for branch in branches),
            max(branch.values for branch in branches),
            _branch([branch.count for branch in branches]),
            _labelled({branch.label: branch.read for branch in branches}),
            "",
        )

    def _define(self, schema: Mapping[str, Any], kind: str, name: str, depth: int) -> AvroType:
        if kind == "enum":
            symbols = schema["symbols"]
            made = {"type": kind, "name": name, "symbols": symbols}
            return AvroType(
                made, 1, 1, _varint, lambda value: _expected(value in symbols, value, "a symbol of its enum"), name
            )
        if kind == "fixed":
            made, size = {"type": kind, "name": name, "size": schema["size"]}, schema["size"]
            return _converted(schema, AvroType(made, max(0, size), 1, _fixed(size), _fixed_text(size), name))
        fields = {field["name"]: self.of(field["type"], depth) for field in schema["fields"]}
        made = {"type": kind, "name": name, "fields": [{"name": one, "type": fields[one].schema} for one in fields]}
        values = 1 + sum(field.values for field in fields.values())
        if values > MOST_OF_A_RECORD:
            raise self.refusal(f"allows more than {MOST_OF_A_RECORD} values in one record")
        count, read = _each([field.count for field in fields.values()]), _record(fields)
        return AvroType(made, sum(field.least for field in fields.values()), values, count, read, name)


def _converted(schema: Mapping[str, Any], of: AvroType) -> AvroType:
    made = of.schema if isinstance(of.schema, dict) else {"type": of.schema}
    kind, logical, more = made["type"], str(schema.get("logicalType")), dict[str, int]()
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is type(scale) is int and 0 <= scale <= precision <= MOST_DIGITS:
            more = {"precision": precision, "scale": scale}
        else:
            logical = PLAIN
    if (kind, logical) not in CONVERTERS:
        logical = PLAIN
    convert = CONVERTERS.get((kind, logical))
    if convert is None:
        return of
    ours, read = {**made, "logicalType": OWN + logical, **more}, of.read
    return replace(of, schema=ours, read=lambda value: convert(read(value), ours))


# Counting


def _long(data: bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int, _: ValueBudget) -> int:
    return _long(data, at)[1]


def _fixed(size: int) -> Walk:
    return lambda _data, at, _budget: at + size


def _skipped(data: bytes, at: int, _: ValueBudget) -> int:
    length, at = _long(data, at)
    if length < 0:
        raise ValueError(f"a length is negative: {length}")
    return at + length


def _each(fields: list[Walk]) -> Walk:
    def walk(data: bytes, at: int, budget: ValueBudget) -> int:
        budget.take(len(fields))
        for field in fields:
            at = field(data, at, budget)
        return at

    return walk


def _branch(branches: list[Walk]) -> Walk:
    def walk(data: bytes, at: int, budget: ValueBudget) -> int:
        index, at = _long(data, at)
        if index < 0:
            raise ValueError(f"the number of a union's branch is negative: {index}")
        return branches[index](data, at, budget)

    return walk


def _blocks(item: Walk, values: int) -> Walk:
    """Return a function that skips an array or a map, and subtracts its items from the budget. `item` skips one item.
    `values` is the number of values per item: 1 in an array, 2 in a map (key and value)."""

    def walk(data: bytes, at: int, budget: ValueBudget) -> int:
        count, at = _long(data, at)
        while count:
            if count < 0:
                count, at = -count, _long(data, at)[1]
            budget.take(values * count)
            for _ in range(count):
                at = item(data, at, budget)
            count, at = _long(data, at)
        return at

    return walk


# Reading the JSON encoding


def _record(fields: Mapping[str, AvroType]) -> Read:
    def read(value: Any) -> Any:
        held = _expected(isinstance(value, dict), value, "a record")
        # Absent fields stay absent, so that the result has no more values than the text.
        return {name: fields[name].read(one) for name, one in held.items() if name in fields}

    return read


def _labelled(branches: Mapping[str, Read]) -> Read:
    def read(value: Any) -> Any:
        if value is None:
            if "null" not in branches:
                raise ValueError("null where null is not allowed")
            return None
        if not isinstance(value, dict) or len(value) != 1 or (label := next(iter(value))) not in branches:
            raise ValueError(f"a union's value must be an object keyed by its type, one of {', '.join(branches)}")
        return branches[label](value[label])

    return read


def _array(item: Read) -> Read:
    return lambda value: [item(one) for one in _expected(isinstance(value, list), value, "an array")]


def _map(item: Read) -> Read:
    return lambda value: {key: item(one) for key, one in _expected(isinstance(value, dict), value, "a map").items()}


def _fixed_text(size: int) -> Read:
    def read(value: Any) -> Any:
        held = _bytes(value)
        if len(held) != size:
            raise ValueError(f"{len(held)} bytes where {size} are expected")
        return held

    return read


def _expected(is_right: bool, value: Any, words: str) -> Any:
    """Return the value if `is_right`, otherwise raise ValueError. `words` names the expected value."""
    if not is_right:
        raise ValueError(f"{type(value).__name__} where {words} is expected")
    return value


def _whole(bits: int) -> Read:
    limit, words = 1 << (bits - 1), f"a whole number of {bits} bits"
    return lambda value: _expected(type(value) is int and -limit <= value < limit, value, words)


def _number(value: Any) -> float:
    is_number = type(value) in (int, float) or (isinstance(value, str) and value in NOT_NUMBERS)
    return float(_expected(is_number, value, "a number"))


def _bytes(value: Any) -> bytes:
    return str(_expected(isinstance(value, str), value, "a string that represents bytes")).encode("latin-1")


PRIMITIVES: Mapping[str, tuple[int, Walk, Read]] = {
    "null": (0, _fixed(0), lambda value: _expected(value is None, value, "null")),
    "boolean": (1, _fixed(1), lambda value: _expected(isinstance(value, bool), value, "a boolean")),
    "int": (1, _varint, _whole(32)),
    "long": (1, _varint, _whole(64)),
    "float": (4, _fixed(4), _number),
    "double": (8, _fixed(8), _number),
    "bytes": (1, _skipped, _bytes),
    "string": (1, _skipped, lambda value: _expected(isinstance(value, str), value, "a string")),
}
"""Maps a primitive type to three things: the minimum number of bytes of a value, the function that skips a value in
binary data, and the function that converts a value from the JSON encoding."""


UNFIT = (ArithmeticError, EOFError, LookupError, TypeError, ValueError)
"""Errors that fastavro raises for bytes that are not Avro, or were written with a different schema."""

NO_MESSAGE = (
    "it is an Avro object container file; a message must hold a single record in Avro's binary or JSON encoding (in "
    "fastavro, use schemaless_writer)"
)


class AvroCodec:
    """Decodes payloads that were written with one Avro schema. All methods raise Unreadable for any other payload.

    The constructor raises Unreadable if the schema is invalid, recursive, too deep or not a record, or if it allows
    many values in few bytes.
    """

    def __init__(self, definition: Definition) -> None:
        self._origin = definition.origin
        checking = _Checking(definition.origin)
        try:
            parsed_schema = parse_schema(orjson.loads(definition.content), named_schemas={}, _write_hint=False)
            self._record = checking.of(parsed_schema, 0)
            if not isinstance(self._record.schema, dict) or self._record.schema["type"] not in ("record", "error"):
                raise checking.refusal("is not a record")
            self.schema = parse_schema(self._record.schema, named_schemas={})
        except BROKEN as error:
            raise Unreadable(f"the schema {definition.origin} is not a valid Avro schema: {error!r}"[:300]) from error
        self._values_a_byte = checking.densest  # in addition to at most MOST_OF_A_RECORD values

    def binary(self, data: bytes) -> Any:
        """Decode a record in Avro's binary encoding, without a header."""
        stream = BytesIO(data)
        try:
            if len(data) * self._values_a_byte > MOST_VALUES - MOST_OF_A_RECORD:
                budget = ValueBudget()
                budget.take(1)
                self._record.count(data, 0, budget)
            value = schemaless_reader(stream, self.schema, None)
        except UNFIT as error:
            raise self._unreadable(data, fault_text(error)) from error
        if (left := len(data) - stream.tell()) > 0:
            raise self._unreadable(data, f"trailing bytes: {left}")
        return value

    def text(self, data: bytes) -> Any:
        """Decode a record in Avro's JSON encoding."""
        if data.startswith(CONTAINER):
            raise Unreadable(f"not valid Avro JSON for the schema {self._origin}: {NO_MESSAGE}")
        return self.value(parsed(data))

    def value(self, value: Any) -> Any:
        """Decode a record in Avro's JSON encoding from an already parsed JSON value."""
        try:
            return self._record.read(value)
        except UNFIT as error:
            raise Unreadable(f"not valid Avro JSON for the schema {self._origin}: {fault_text(error)}") from error

    def _unreadable(self, data: bytes, why: str) -> Unreadable:
        return Unreadable(
            f"not valid Avro for the schema {self._origin}: {NO_MESSAGE if data.startswith(CONTAINER) else why}"
        )


def fault_text(error: BaseException) -> str:
    """Describe, for users, the fault in the bytes that made fastavro raise this error."""
    if isinstance(error, EOFError):
        return "the bytes end too soon"
    if isinstance(error, LookupError):  # an index into a union or an enumeration
        return "the bytes name a branch or a symbol that the schema does not have"
    return f"{error}"[:200] or type(error).__name__


def records_of(content: bytes, name: str) -> Iterator[bytes]:
    """Yield the bytes of each record in an Avro object container file. Raises Unreadable if the file is invalid.

    Finding a record's end means parsing the record, so the file's schema is first checked like a topic's schema."""
    try:
        blocks = block_reader(BytesIO(content))
        written = str(blocks.metadata["avro.schema"]).encode()
        schema = AvroCodec(Definition(f"in {name}", Encoding.AVRO, written)).schema
        for block in blocks:
            records = block.bytes_  # type: ignore[attr-defined]
            for _ in range(block.num_records):
                begin = records.tell()
                schemaless_reader(records, schema, None)
                end = records.tell()
                records.seek(begin)
                yield records.read(end - begin)
    except UNFIT as error:
        raise Unreadable(fault_text(error)) from error
