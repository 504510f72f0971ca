"""The seam: from messages' attributes and bytes to objects, for every part that judges messages."""

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
"""Decoded bytes of a part. As Python objects JSON takes up to 30 times as much, and usually 4 times."""


Read = Callable[[int, bytes], Any]
"""Reads the payload of a row. It raises Unreadable and Unknown."""


class _Room:
    """The bytes that may still be decoded in a part, those included that were decompressed in vain."""

    def __init__(self) -> None:
        self.left = PART_BYTES

    def inflated(self, data: bytes) -> bytes:
        """The decompressed payload. Raises Unreadable."""
        try:
            content = inflated(data)
        except Unreadable:
            self.left -= PART_BYTES
            raise
        self.left -= len(content)
        return content


class Decoded(NamedTuple):
    """Messages' attributes, with those of an envelope, and for each payload an object, None, a Rejection or
    Undecided."""

    attributes: Attributes
    payloads: list[Any]


class PayloadDecoder:
    """Decodes the payloads of one topic. `found_in` has the schemas where the format names no file of them. JSON is an
    object, or also an array if it `may_be_array`."""

    def __init__(
        self, written: PayloadFormat, found_in: Definitions | None = None, *, may_be_array: bool = False
    ) -> None:
        self._format = written
        self._may_be_array = may_be_array
        if written.schema and written.has_schema:
            found_in = SchemaFiles(written.schema, written.encoding)
        self._revisions = Revisions(written.encoding, found_in)
        self._may_be_gzip = written.compression is Compression.AUTO and written.encoding is not Encoding.AVRO
        """True if a payload that begins like gzip is gzip: a record of Avro may begin so as well."""

    def decode(self, messages: Messages, asking: Asking) -> Decoded:
        """Decode the first messages: all of them, or so many that their content fills `PART_BYTES`. At least one. What
        a message contains never makes it raise, and what it becomes does not depend on the others.

        Raises InvalidSettings where a schema that the settings name cannot be used.
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
        """Payloads that are JSON: one that begins like gzip is compressed, unless the format says that none is."""
        compression, may_be_array = self._format.compression, self._may_be_array
        is_gzip, may_be_gzip = compression is Compression.GZIP, compression is Compression.AUTO

        def read(_: int, data: bytes) -> Any:
            if is_gzip or (may_be_gzip and data[:3] == MAGIC):
                data = room.inflated(data)
            value = parsed(data)
            return value if type(value) is dict else as_object(value, may_be_array=may_be_array)

        return read

    def _by_schema(self, messages: Messages, asking: Asking, room: _Room) -> Read:
        """Payloads of Avro or protobuf. Most messages of a batch name the same schema, which is looked up once."""
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
        """Payloads in an envelope, whose attributes take the place of the message's."""

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
        """Tell by the format or the message's attribute."""
        compression = self._format.compression
        if compression is not Compression.AUTO:
            return compression is Compression.GZIP
        return attributes.get(CONTENT_ENCODING, "").lower() == GZIP
