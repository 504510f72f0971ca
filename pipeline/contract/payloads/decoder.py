"""Decodes messages' attributes and bytes to objects, for everything that judges messages."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemark.pipeline.contract.messages import AttributeDicts, Attributes, Messages
from tidemark.pipeline.contract.payloads import cloudevents
from tidemark.pipeline.contract.payloads.bounds import MAGIC, as_object, inflated, parsed
from tidemark.pipeline.contract.payloads.definitions import (
    SCHEMA_ENCODING,
    SCHEMA_NAME,
    SCHEMA_REVISION,
    Definitions,
    SchemaFiles,
    is_json,
)
from tidemark.pipeline.contract.payloads.formats import Compression, Encoding, Envelope, PayloadFormat
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Undecided, Unknown, Unreadable
from tidemark.pipeline.contract.payloads.revisions import Asking, Revisions

CONTENT_ENCODING, GZIP = "content-encoding", "gzip"

PART_BYTES = 8 << 20
"""Decoded bytes of a part. As Python objects, JSON usually takes 4 times as much memory, and up to 30 times."""


Read = Callable[[int, bytes], Any]
"""Reads the payload of a row. Raises Unreadable and Unknown."""


class _Room:
    """The bytes that may still be decoded in a part. A failed decompression uses up a whole part."""

    def __init__(self) -> None:
        self.left = PART_BYTES

    def inflated(self, data: bytes) -> bytes:
        """Decompress a payload. Raises Unreadable."""
        try:
            content = inflated(data)
        except Unreadable:
            self.left -= PART_BYTES
            raise
        self.left -= len(content)
        return content


class Decoded(NamedTuple):
    """Messages' attributes, including those of an envelope, and for each payload an object, None if payloads are not
    read, a Rejection or Undecided."""

    attributes: Attributes
    payloads: list[Any]


class PayloadDecoder:
    """Decodes the payloads of one topic. `found_in` finds schemas if the format names no schema file. A JSON payload
    must be an object or, with `may_be_array`, an object or an array."""

    def __init__(
        self, written: PayloadFormat, found_in: Definitions | None = None, *, may_be_array: bool = False
    ) -> None:
        self._format = written
        self._may_be_array = may_be_array
        if written.schema and written.has_schema:
            found_in = SchemaFiles(written.schema, written.encoding)
        self._revisions = Revisions(written.encoding, found_in)
        self._may_be_gzip = written.compression is Compression.AUTO and written.encoding is not Encoding.AVRO
        """True if a payload with gzip's first bytes is gzip. An Avro record may begin with them too."""

    def decode(self, messages: Messages, asking: Asking) -> Decoded:
        """Decode the first messages, until their content fills `PART_BYTES`; at least one.

        Never raises because of a message's content. The result for a message does not depend on the others. Raises
        InvalidSettings if a schema that the settings name cannot be used.
        """
        written = self._format
        if written.envelope is Envelope.NONE and not written.is_read:
            return Decoded(messages.attributes, [None] * len(messages))
        held: list[Mapping[str, str]] | None = None
        room, payloads = _Room(), list[Any]()
        if written.envelope is not Envelope.NONE:
            held = messages.attributes.dicts()
            read = self._of_events(held, messages, asking, room)
        elif written.encoding is Encoding.JSON:
            read = self._of_json(room)
        else:
            read = self._by_schema(messages, asking, room)
        for row, data in enumerate(messages.payloads):
            content = data or b""
            room.left -= len(content)
            try:
                payload = read(row, content)
            except Unreadable as unreadable:
                payload = Rejection(RejectionReason.UNREADABLE_PAYLOAD, str(unreadable))
            except Unknown as unknown:
                payload = Undecided(str(unknown))
            payloads.append(payload)
            if room.left <= 0:
                break
        if held is not None:
            return Decoded(AttributeDicts(held[: len(payloads)]), payloads)
        return Decoded(messages.between(0, len(payloads)).attributes, payloads)

    def _of_json(self, room: _Room) -> Read:
        """Return the reader of JSON payloads. Gzip is recognised by its first bytes, unless the format says that no
        payload, or every payload, is compressed."""
        compression, may_be_array = self._format.compression, self._may_be_array
        is_gzip, may_be_gzip = compression is Compression.GZIP, compression is Compression.AUTO

        def read(_: int, data: bytes) -> Any:
            if is_gzip or (may_be_gzip and data[:3] == MAGIC):
                data = room.inflated(data)
            value = parsed(data)
            return value if type(value) is dict else as_object(value, may_be_array=may_be_array)

        return read

    def _by_schema(self, messages: Messages, asking: Asking, room: _Room) -> Read:
        """Return the reader of Avro or protobuf payloads. Most messages of a batch name the same schema, which is
        looked up once."""
        names = (SCHEMA_NAME, SCHEMA_REVISION, SCHEMA_ENCODING, CONTENT_ENCODING)
        said = list(zip(*(messages.attributes.column(name).to_pylist() for name in names), strict=True))
        known, may_be_gzip = dict[tuple[str | None, ...], tuple[Callable[[bytes], Any], bool]](), self._may_be_gzip

        def read(row: int, data: bytes) -> Any:
            found = known.get(said[row])
            if found is None:
                attributes = {name: value for name, value in zip(names, said[row], strict=True) if value is not None}
                codec = self._revisions.codec(attributes, int(messages.published_us[row]), asking)
                found = codec.text if is_json(attributes) else codec.binary, self._is_compressed(attributes)
                known[said[row]] = found
            decode, is_compressed = found
            if is_compressed or (may_be_gzip and data[:3] == MAGIC):
                data = room.inflated(data)
            return decode(data)

        return read

    def _of_events(self, held: list[Mapping[str, str]], messages: Messages, asking: Asking, room: _Room) -> Read:
        """Return the reader of payloads in an envelope, whose attributes replace the message's."""

        def read(row: int, data: bytes) -> Any:
            if self._is_compressed(held[row]) or (self._may_be_gzip and data[:3] == MAGIC):
                data = room.inflated(data)
            attributes, data, value, is_value = cloudevents.opened(held[row], data)
            held[row] = attributes
            if not self._format.is_read:
                return None
            if self._format.encoding is Encoding.JSON:
                return as_object(value if is_value else parsed(data), may_be_array=self._may_be_array)
            codec = self._revisions.codec(attributes, int(messages.published_us[row]), asking)
            if is_value:
                return codec.value(value)
            return codec.text(data) if is_json(attributes) else codec.binary(data)

        return read

    def _is_compressed(self, attributes: Mapping[str, str]) -> bool:
        """True if the format or the message's attribute says that the payload is compressed."""
        compression = self._format.compression
        if compression is not Compression.AUTO:
            return compression is Compression.GZIP
        return attributes.get(CONTENT_ENCODING, "").lower() == GZIP
