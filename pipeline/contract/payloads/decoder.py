"""The seam: from messages' attributes and bytes to objects, for every part that judges messages."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tidemark.pipeline.contract.payloads import cloudevents
from tidemark.pipeline.contract.payloads.definitions import Definitions, files_at, is_json
from tidemark.pipeline.contract.payloads.formats import Compression, Encoding, Envelope, PayloadFormat
from tidemark.pipeline.contract.payloads.gzipped import MAGIC, Inflater
from tidemark.pipeline.contract.payloads.json_text import as_object, parsed, read_payload
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Unreadable
from tidemark.pipeline.contract.payloads.revisions import Revisions

CONTENT_ENCODING, GZIP = "content-encoding", "gzip"

Attributes = Mapping[str, str]


class Decoded(NamedTuple):
    """Messages' attributes, with those of an envelope, and for each payload an object, None or a Rejection."""

    attributes: Sequence[Attributes]
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
            found_in = files_at(written.schema, written.encoding)
        self._revisions = Revisions(written.encoding, found_in)

    def decode(self, attributes: Sequence[Attributes], payloads: Sequence[bytes | None]) -> Decoded:
        """Decode a batch. What a message contains never makes it raise.

        Raises TidemarkError where a schema cannot be had now, or where a file that the settings name is no schema.
        """
        written = self._format
        if written.envelope is Envelope.NONE and not written.is_read:
            return Decoded(attributes, [None] * len(payloads))
        inflater = Inflater()
        is_plain = written.envelope is Envelope.NONE and written.encoding is Encoding.JSON
        if is_plain and written.compression is not Compression.GZIP:
            inflates = inflater if written.compression is Compression.AUTO else None
            read = partial(read_payload, may_be_array=True) if self._may_be_array else read_payload
            return Decoded(attributes, [read(data or b"", inflates) for data in payloads])
        missing: dict[str, str] = {}
        both = [
            self._one(held, data or b"", inflater, missing) for held, data in zip(attributes, payloads, strict=True)
        ]
        return Decoded([held for held, _ in both], [payload for _, payload in both])

    def _one(
        self, attributes: Attributes, data: bytes, inflater: Inflater, missing: dict[str, str]
    ) -> tuple[Attributes, Any]:
        value, is_value = None, False
        try:
            if self._is_compressed(attributes, data):
                data = inflater.inflate(data)
            if self._format.envelope is Envelope.CLOUDEVENTS:
                attributes, data, value, is_value = cloudevents.opened(attributes, data)
            payload = self._value(attributes, value, missing) if is_value else self._read(attributes, data, missing)
        except Unreadable as unreadable:
            return attributes, Rejection(RejectionReason.UNREADABLE_PAYLOAD, str(unreadable))
        return attributes, payload

    def _is_compressed(self, attributes: Attributes, data: bytes) -> bool:
        """With AUTO, by the attribute or by gzip's first bytes. A record of Avro may begin with these: there the
        attribute alone says it."""
        compression = self._format.compression
        if compression is not Compression.AUTO:
            return compression is Compression.GZIP
        if self._format.encoding is not Encoding.AVRO and data.startswith(MAGIC):
            return True
        return attributes.get(CONTENT_ENCODING, "").lower() == GZIP

    def _read(self, attributes: Attributes, data: bytes, missing: dict[str, str]) -> Any:
        if not self._format.is_read:
            return None
        if self._format.encoding is Encoding.JSON:
            return as_object(parsed(data), may_be_array=self._may_be_array)
        codec = self._revisions.codec(attributes, missing)
        return codec.text(data) if is_json(attributes) else codec.binary(data)

    def _value(self, attributes: Attributes, value: Any, missing: dict[str, str]) -> Any:
        """A value that was JSON within an event, which a schema reads in its JSON form."""
        if not self._format.is_read:
            return None
        if self._format.encoding is Encoding.JSON:
            return as_object(value, may_be_array=self._may_be_array)
        return self._revisions.codec(attributes, missing).value(value)
