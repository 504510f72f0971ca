"""Payloads that are Avro records, in Avro's binary or JSON encoding."""

from io import BytesIO
from typing import Any

from fastavro import schemaless_reader

from tidemark.pipeline.contract.payloads.avro_count import counter_of
from tidemark.pipeline.contract.payloads.avro_json import json_reader
from tidemark.pipeline.contract.payloads.avro_schema import ready_schema
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.formats import CONTAINER
from tidemark.pipeline.contract.payloads.json_text import parsed
from tidemark.pipeline.contract.payloads.rejections import Unreadable

UNFIT = (ArithmeticError, EOFError, LookupError, TypeError, ValueError)
"""What reading raises for bytes that another schema wrote, or none."""

NO_MESSAGE = (
    "it is an Avro object container file; a message holds one record alone, in Avro's binary or JSON encoding (in "
    "fastavro, schemaless_writer writes that)"
)


class AvroCodec:
    """Reads the payloads that were written with one schema, as plain values. It raises Unreadable."""

    def __init__(self, definition: Definition) -> None:
        self._schema, densest = ready_schema(definition)
        self._origin = definition.origin
        self._read = json_reader(self._schema)
        self._count = counter_of(self._schema, densest)

    def binary(self, data: bytes) -> Any:
        """A record in Avro's binary encoding, without a header."""
        stream = BytesIO(data)
        try:
            self._count(data)
            value = schemaless_reader(stream, self._schema, None)
        except UNFIT as error:
            raise Unreadable(f"not Avro of {self._origin}: {_why(data, told(error))}") from error
        if (left := len(data) - stream.tell()) > 0:
            raise Unreadable(f"not Avro of {self._origin}: {_why(data, f'{left} bytes are left over')}")
        return value

    def text(self, data: bytes) -> Any:
        """A record in Avro's JSON encoding."""
        if data.startswith(CONTAINER):
            raise Unreadable(f"not Avro's JSON of {self._origin}: {NO_MESSAGE}")
        return self.value(parsed(data))

    def value(self, value: Any) -> Any:
        """The same, parsed already."""
        try:
            return self._read(value)
        except UNFIT as error:
            raise Unreadable(f"not Avro's JSON of {self._origin}: {told(error)}") from error


def _why(data: bytes, otherwise: str) -> str:
    return NO_MESSAGE if data.startswith(CONTAINER) else otherwise


def told(error: BaseException) -> str:
    """What is wrong, in words."""
    if isinstance(error, EOFError):
        return "the bytes end too soon"
    if isinstance(error, LookupError):  # an index into a union or an enumeration
        return "the bytes name a branch or a symbol that it does not have"
    return f"{error}"[:200] or type(error).__name__
