"""Payloads that are Avro records, in Avro's binary or JSON encoding."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

from fastavro import block_reader, schemaless_reader

from tidemark.pipeline.contract.payloads.avro_types import ready_schema
from tidemark.pipeline.contract.payloads.bounds import parsed
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.formats import CONTAINER, Encoding
from tidemark.pipeline.contract.payloads.rejections import Unreadable

UNFIT = (ArithmeticError, EOFError, LookupError, TypeError, ValueError)
"""Errors raised when reading bytes that were written with another schema or are not Avro."""

NO_MESSAGE = (
    "it is an Avro object container file; a message must hold a single record in Avro's binary or JSON encoding (in "
    "fastavro, use schemaless_writer)"
)


class AvroCodec:
    """Reads the payloads that were written with one schema, as plain values. Its methods raise Unreadable."""

    def __init__(self, definition: Definition) -> None:
        self._ready = ready_schema(definition)
        self._origin = definition.origin

    def binary(self, data: bytes) -> Any:
        """Read a record in Avro's binary encoding, without a header."""
        stream = BytesIO(data)
        try:
            self._ready.refuse_many_values(data)
            value = schemaless_reader(stream, self._ready.schema, None)
        except UNFIT as error:
            raise self._unreadable(data, told(error)) from error
        if (left := len(data) - stream.tell()) > 0:
            raise self._unreadable(data, f"{left} bytes are left over")
        return value

    def text(self, data: bytes) -> Any:
        """Read a record in Avro's JSON encoding."""
        if data.startswith(CONTAINER):
            raise Unreadable(f"not Avro's JSON of {self._origin}: {NO_MESSAGE}")
        return self.value(parsed(data))

    def value(self, value: Any) -> Any:
        """Like `text`, for JSON that is already parsed."""
        try:
            return self._ready.record.read(value)
        except UNFIT as error:
            raise Unreadable(f"not Avro's JSON of {self._origin}: {told(error)}") from error

    def _unreadable(self, data: bytes, why: str) -> Unreadable:
        return Unreadable(f"not Avro of {self._origin}: {NO_MESSAGE if data.startswith(CONTAINER) else why}")


def told(error: BaseException) -> str:
    """Say what is wrong with the bytes."""
    if isinstance(error, EOFError):
        return "the bytes end too soon"
    if isinstance(error, LookupError):  # an index into a union or an enumeration
        return "the bytes name a branch or a symbol that the schema does not have"
    return f"{error}"[:200] or type(error).__name__


def records_of(content: bytes, name: str) -> Iterator[bytes]:
    """Yield each record of an Avro object container file, byte for byte. Raises Unreadable.

    The schema in the file is checked like a topic's schema, because records are walked to find their ends.
    """
    try:
        blocks = block_reader(BytesIO(content))
        written = str(blocks.metadata["avro.schema"]).encode()
        ready = ready_schema(Definition(f"in {name}", Encoding.AVRO, written))
        for block in blocks:
            records = block.bytes_  # type: ignore[attr-defined]
            for _ in range(block.num_records):
                begin = records.tell()
                schemaless_reader(records, ready.schema, None)
                end = records.tell()
                records.seek(begin)
                yield records.read(end - begin)
    except UNFIT as error:
        raise Unreadable(told(error)) from error
