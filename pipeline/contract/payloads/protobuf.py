"""Payloads that are protobuf messages, in binary or in protobuf's JSON form."""

from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from tidemark.pipeline.contract.payloads.bounds import Budget, refuse_many_values
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.proto_count import refuse_many_values_on_the_wire, shape_of, widest
from tidemark.pipeline.contract.payloads.proto_text import compiled
from tidemark.pipeline.contract.payloads.proto_values import MessageValues
from tidemark.pipeline.contract.payloads.rejections import Unreadable

UNFIT = (
    *(message.DecodeError, json_format.Error),
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What reading raises for bytes that another schema wrote, or none: RecursionError beyond what may be nested."""


class ProtobufCodec:
    """Reads the payloads that were written with one schema, as plain values. It raises Unreadable."""

    def __init__(self, definition: Definition) -> None:
        self._origin = definition.origin
        content = definition.content
        if not definition.is_compiled:
            content = compiled(content, definition.origin)
        try:
            descriptor = _first_message(content)
            self._message: Any = message_factory.GetMessageClass(descriptor)
            self._values = MessageValues(descriptor, {})
            self._shape = shape_of(descriptor)
            self._most = widest(self._shape)
        except UNFIT as error:
            raise Unreadable(f"the schema {self._origin} is not protobuf's: {error}") from error

    def binary(self, data: bytes) -> Any:
        """A message in protobuf's binary form."""
        try:
            refuse_many_values_on_the_wire(data, self._shape, self._most)
            return self._values.of(self._message.FromString(data), Budget())
        except UNFIT as error:
            raise Unreadable(f"not protobuf of {self._origin}: {error}"[:300]) from error

    def text(self, data: bytes) -> Any:
        """A message in protobuf's JSON form, under the names of the .proto file or in camel case."""
        try:
            refuse_many_values(data, self._most)
            return self._values.of(json_format.Parse(data, self._message(), ignore_unknown_fields=True), Budget())
        except UNFIT as error:
            raise Unreadable(f"not protobuf's JSON of {self._origin}: {error}"[:300]) from error

    def value(self, value: Any) -> Any:
        """The same, parsed already."""
        try:
            return self.text(orjson.dumps(value))
        except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
            raise Unreadable(f"not protobuf's JSON of {self._origin}: {error}") from error


def _first_message(content: bytes) -> Any:
    """The first message of the last file: the others are what it imports. Pub/Sub allows one at the top."""
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    if not files or not files[-1].message_type:
        raise ValueError("it has no message")
    main = files[-1]
    return pool.FindMessageTypeByName(".".join(filter(None, (main.package, main.message_type[0].name))))
