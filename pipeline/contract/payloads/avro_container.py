"""Avro object container files, whose records are what messages hold, one each. No message is such a file."""

from collections.abc import Iterator
from io import BytesIO

from fastavro import block_reader, schemaless_reader

from tidemark.pipeline.contract.payloads.avro import UNFIT, told
from tidemark.pipeline.contract.payloads.avro_schema import ready_schema
from tidemark.pipeline.contract.payloads.definitions import Definition
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unreadable

SCHEMA = "avro.schema"
"""The key of the file's header with the schema that wrote it."""


def records_of(content: bytes, name: str) -> Iterator[bytes]:
    """The records of a container file, each with the bytes that it has there. Raises Unreadable; the schema in the file
    is checked as one of a topic is, as its records are walked to find their ends."""
    try:
        blocks = block_reader(BytesIO(content))
        written = str(blocks.metadata[SCHEMA]).encode()
        schema, _ = ready_schema(Definition(f"in {name}", Encoding.AVRO, written))
        for block in blocks:
            records = block.bytes_  # type: ignore[attr-defined]
            for _ in range(block.num_records):
                begin = records.tell()
                schemaless_reader(records, schema, None)
                end = records.tell()
                records.seek(begin)
                yield records.read(end - begin)
    except UNFIT as error:
        raise Unreadable(told(error)) from error
