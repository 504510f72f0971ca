"""Decodes payloads that are protobuf messages, in protobuf's binary or JSON form.

A message becomes a mapping from the field names of the .proto file to JSON values. To make values comparable, three
things differ from protobuf's own JSON form: a 64-bit integer is a number, a field without presence has its default
value, and an absent or non-finite value is null.

Payloads with too many values are rejected before the library creates objects: this module counts the values in the
bytes.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, json_format, message, message_factory

from tidemark.pipeline.contract.payloads.parsing import DEEPEST, ValueBudget, refuse_many_values
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable
from tidemark.pipeline.contract.payloads.schemas import Definition, as_base64, finite, varint

LEAST_BYTES = 2
"""Minimum number of bytes of a submessage: its tag and its length."""

FIELDS_A_VALUE = 16
"""Number of fields in the library's message objects that take as much memory as one value. A field takes at most 16
bytes, even if it is not set, and a value takes about 300."""

VARINT, EIGHT, LENGTH, BEGIN, END, FOUR = range(6)
"""Protobuf's wire types."""

WIDTHS = {1: 8, 2: 4, 6: 8, 7: 4, 15: 4, 16: 8}

ENDS = bytes(range(128, 256))
"""All bytes with the high bit set. In a varint, every byte except the last one has this bit set."""

EXACT = 1 << 53
"""Whole numbers below this one are exact as `double`."""

Convert = Callable[[Any, int], Any]
"""Function that converts a value of the library to a plain value. Its second argument is the number of messages in
which the value is nested."""


class MessageType:
    """A protobuf message type: counts the values in the bytes of its messages, and converts its messages to JSON
    values.

    The constructor adds this type and the types of all nested messages to `known`, under their names. `values` is the
    number of values of a message: one for itself and one per field. Values inside nested messages are not included.
    If a map entry's value is a message, that message counts too (`_made`): the library creates it if it is missing.
    """

    def __init__(self, descriptor: Any, known: dict[str, "MessageType"]) -> None:
        known[descriptor.full_name] = self  # first, because a type may contain itself
        self._messages: dict[int, MessageType] = {}
        self._packed: dict[int, int] = {}
        self._fields: list[_Field] = []
        for field in descriptor.fields:
            kind = field.message_type
            if kind is not None:
                self._messages[field.number] = known.get(kind.full_name) or MessageType(kind, known)
            elif field.is_repeated and field.cpp_type != field.CPPTYPE_STRING:
                self._packed[field.number] = WIDTHS.get(field.type, 0)
            self._fields.append(_Field(field, known))
        self.values = len(self._fields) + 1
        self._made = 0
        if descriptor.GetOptions().map_entry and self._messages:
            self._made = len(kind.fields) + 1
            self.values += self._made

    def of(self, message: Any, depth: int = 0) -> dict[str, Any]:
        """Convert a message to a mapping from field names to values. `depth` is the number of messages in which it is
        nested. Raises Unreadable if messages are nested too deeply, and ValueError if a time is out of range."""
        if depth == DEEPEST:
            raise Unreadable(f"more than {DEEPEST} levels")
        return {field.name: field.of(message, depth + 1) for field in self._fields}

    def refuse_many_values(self, data: bytes, most: int) -> None:
        """Raise Unreadable if the bytes have more values than a payload may have. `most` is the largest `values`
        among this type and all types nested in it. A nested message takes at least LEAST_BYTES and adds at most `most`
        values. So values are not counted if the bytes are too few to exceed the limit.

        Counting stops at invalid bytes, which the library reports later.
        """
        budget = ValueBudget()
        if len(data) // LEAST_BYTES * most > budget.left:
            self._walk(data, 0, len(data), budget)

    def _walk(self, data: bytes, at: int, end: int, budget: ValueBudget) -> int:
        """Count the values in the bytes `[at, end)`. Return the position at which counting ended: `end`, the end of a
        group, or an error in the bytes."""
        budget.take(self.values)
        try:
            while at < end:
                tag, at = varint(data, at)
                number, how = tag >> 3, tag & 7
                if how == LENGTH:
                    size, at = varint(data, at)
                    stop = min(at + size, end)
                    if number in self._messages:
                        budget.left += self._made  # counted with the entry
                        self._messages[number]._walk(data, at, stop, budget)
                    elif number in self._packed:
                        width = self._packed[number]
                        budget.take((stop - at) // width if width else len(data[at:stop].translate(None, ENDS)))
                    else:
                        budget.take(1)
                    at = stop
                elif how == BEGIN:
                    at = self._messages.get(number, UNKNOWN)._walk(data, at, end, budget)
                elif how == VARINT:
                    budget.take(1)
                    _, at = varint(data, at)
                elif how in (EIGHT, FOUR):
                    budget.take(1)
                    at += 8 if how == EIGHT else 4
                else:
                    return at
        except (IndexError, ValueError):
            return end
        return at


UNKNOWN = MessageType(empty_pb2.Empty.DESCRIPTOR, {})
"""Message type without fields, for a group in the bytes that is not in the schema."""


class _Field:
    def __init__(self, field: Any, known: dict[str, MessageType]) -> None:
        self.name: str = field.name
        self._has_presence = field.has_presence
        self._is_repeated = field.is_repeated
        entry = field.message_type
        self._is_map = entry is not None and entry.GetOptions().map_entry
        self._one = _converter(entry.fields_by_name["value"] if self._is_map else field, known)

    def of(self, message: Any, depth: int) -> Any:
        if self._has_presence and not type(message).HasField(message, self.name):
            return None
        value = getattr(message, self.name)
        if self._is_map:
            # The library's order differs between processes.
            return {_key(key): self._one(value[key], depth) for key in sorted(value)}
        return [self._one(one, depth) for one in value] if self._is_repeated else self._one(value, depth)


def _converter(field: Any, known: dict[str, MessageType]) -> Convert:
    if (kind := field.message_type) is not None:
        return WELL_KNOWN.get(kind.full_name) or known[kind.full_name].of
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number, _: names[number].name if number in names else number
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return finite
    return as_base64 if field.type == field.TYPE_BYTES else _itself


def _key(key: Any) -> str:
    return ("false", "true")[key] if isinstance(key, bool) else str(key)


def _itself(value: Any, _: int) -> Any:
    return value


def _dynamic(value: Any) -> Any:
    """Convert a Struct, a Value or a ListValue. All its numbers are `double`; whole ones below EXACT become `int`."""
    match value.DESCRIPTOR.name if isinstance(value, message.Message) else "":
        case "Struct":
            return {key: _dynamic(value.fields[key]) for key in sorted(value.fields)}
        case "ListValue":
            return [_dynamic(one) for one in value.values]
        case "Value":
            kind = value.WhichOneof("kind")
            return None if kind in (None, "null_value") else _dynamic(getattr(value, kind))
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < EXACT else finite(value)
    return value


def _wrapped(convert: Convert) -> Convert:
    return lambda message, depth: convert(message.value, depth)


WELL_KNOWN: Mapping[str, Convert] = {
    f"google.protobuf.{name}": convert
    for names, convert in (
        ("Timestamp Duration FieldMask", lambda message, _: message.ToJsonString()),
        ("Struct Value ListValue", lambda message, _: _dynamic(message)),
        ("DoubleValue FloatValue", _wrapped(finite)),
        ("BytesValue", _wrapped(as_base64)),
        ("Int32Value Int64Value UInt32Value UInt64Value BoolValue StringValue", _wrapped(_itself)),
    )
    for name in names.split()
}
"""Converters of protobuf's well-known types that represent a single value. An Any is converted field by field."""


COMPILED_WITHIN_SECONDS = 30
"""Time limit of protoc in seconds. protoc takes a fraction of a second for 300 KB, the largest schema that Pub/Sub
allows."""

SOURCE, COMPILED = "schema.proto", "schema.binpb"

UNFIT = (
    *(message.DecodeError, json_format.Error),
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""Errors that the protobuf library raises for bytes that are not protobuf, or were written with a different schema, or
are nested too deeply (RecursionError)."""


class ProtobufCodec:
    """Decodes payloads that were written with one protobuf schema. All methods raise Unreadable for any other payload.
    The constructor raises Unreadable if the schema is invalid, and Unknown if its compilation was interrupted."""

    def __init__(self, definition: Definition) -> None:
        self._origin, content = definition.origin, definition.content
        if not definition.is_compiled:
            content = compiled(content, definition.origin)
        try:
            descriptor = _first_message(content)
            self._message: Any = message_factory.GetMessageClass(descriptor)
            known = dict[str, MessageType]()
            self._type = MessageType(descriptor, known)
            self._most = max(one.values for one in known.values())
        except UNFIT as error:
            raise Unreadable(f"the schema {self._origin} is not a valid protobuf schema: {error}") from error

    def binary(self, data: bytes) -> Any:
        """Decode a message in protobuf's binary form."""
        try:
            self._type.refuse_many_values(data, self._most)
            return self._type.of(self._message.FromString(data))
        except UNFIT as error:
            raise Unreadable(f"not valid protobuf for the schema {self._origin}: {error}"[:300]) from error

    def text(self, data: bytes) -> Any:
        """Decode a message in protobuf's JSON form. Field names may be as in the .proto file or in camel case."""
        try:
            refuse_many_values(data, 1 + self._most // FIELDS_A_VALUE)
            value = orjson.loads(data)
            orjson.dumps(value)  # bounds the levels: the next parser's own limit depends on the caller's stack
            if type(value) is not dict:
                raise TypeError("it is not an object")
            message, pool = self._message(), self._message.DESCRIPTOR.file.pool
            json_format.Parse(data, message, ignore_unknown_fields=True, descriptor_pool=pool)
        except UNFIT as error:
            raise Unreadable(f"not valid protobuf JSON for the schema {self._origin}: {error}"[:300]) from error
        return self.binary(message.SerializePartialToString())  # counts the values as in the binary form

    def value(self, value: Any) -> Any:
        """Decode a message in protobuf's JSON form from an already parsed JSON value."""
        try:
            return self.text(orjson.dumps(value))
        except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
            raise Unreadable(f"not valid protobuf JSON for the schema {self._origin}: {error}") from error


def _first_message(content: bytes) -> Any:
    """Return the descriptor of the first message in the last file of a FileDescriptorSet. The other files are imports.
    Pub/Sub allows one top-level message per schema. Raises ValueError if there is none."""
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    if not files or not files[-1].message_type:
        raise ValueError("it defines no message")
    main = files[-1]
    return pool.FindMessageTypeByName(".".join(filter(None, (main.package, main.message_type[0].name))))


def compiled(text: bytes, origin: str) -> bytes:
    """Compile the text of a .proto file to a FileDescriptorSet that includes its imports. Only protobuf's own files can
    be imported. Raises Unreadable if the text is invalid, and Unknown if protoc times out, is killed or fails to run.

    protoc runs in a separate process, because it is written in C++ and reports errors only on standard error.
    """
    with TemporaryDirectory(prefix="tidemark-proto-") as folder:
        Path(folder, SOURCE).write_bytes(text)
        options = [f"--proto_path={folder}", f"--descriptor_set_out={Path(folder, COMPILED)}", "--include_imports"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, SOURCE]
        try:
            done = subprocess.run(
                command, capture_output=True, cwd=folder, timeout=COMPILED_WITHIN_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unknown(f"protoc took more than {COMPILED_WITHIN_SECONDS} s for the schema {origin}") from error
        if done.returncode < 0:
            raise Unknown(f"protoc was killed by signal {-done.returncode} while it read the schema {origin}")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").splitlines()
            said = "; ".join(line.partition(f"{SOURCE}:")[2].strip() for line in lines if f"{SOURCE}:" in line)
            if not said:  # not an error in the schema: perhaps a full disk, or too little memory
                raise Unknown(f"protoc failed while it read the schema {origin}: {' '.join(lines)[-500:]}")
            raise Unreadable(f"the schema {origin} is not a valid protobuf schema: {said[:500]}")
        return Path(folder, COMPILED).read_bytes()
