"""Decodes the payloads of messages to objects, and opens their envelopes.

CloudEvents are decoded in both modes of their Pub/Sub protocol binding. An event's context becomes attributes of the
message, named `ce-…`. Source: "Google Cloud Pub/Sub Protocol Binding for CloudEvents 1.0" and the JSON event format of
CloudEvents 1.0.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidemark.pipeline.contract.messages import Attributes, Messages
from tidemark.pipeline.contract.payloads.parsing import MAGIC, as_object, inflated, json_kind, parsed, quoted
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Undecided, Unknown, Unreadable
from tidemark.pipeline.contract.payloads.schemas import (
    SCHEMA_ATTRIBUTES,
    Asking,
    Compression,
    Definitions,
    Encoding,
    Envelope,
    PayloadFormat,
    Revisions,
    SchemaFiles,
    is_json,
)

CONTENT_ENCODING, GZIP = "content-encoding", "gzip"

PART_BYTES = 8 << 20
"""A part of a batch ends when this many bytes are decoded. As Python objects, decoded JSON usually takes 4 times as
much memory, and at most 30 times."""

VALUE_BYTES = 24
"""Number of bytes that each value of a payload adds to the size of a part, besides its encoded bytes. Reason: even an
absent or one-byte value takes about 70 bytes as a Python object, and a JMESPath needs microseconds to search it. In
JSON, the number of commas stands for the number of values."""

Read = Callable[[int, bytes], Any]
"""Function that decodes the payload of one message, given its position. Raises Unreadable or Unknown."""


class _Room:
    """The number of bytes that may still be decoded in a part of a batch."""

    def __init__(self) -> None:
        self.left = PART_BYTES

    def inflated(self, data: bytes) -> bytes:
        parts = list[bytes]()
        for part in inflated(data):  # counts the parts even if the payload turns out to be unreadable
            self.left -= len(part)
            parts.append(part)
        return b"".join(parts)

    def parsed(self, data: bytes) -> Any:
        self.left -= VALUE_BYTES * data.count(b",")
        return parsed(data)


class Decoded(NamedTuple):
    """Attributes of messages, including those of the envelope, and decoded payloads. A payload is an object or array, a
    Rejection, Undecided, or None if payloads are not read."""

    attributes: Attributes
    payloads: Sequence[Any]


class PayloadDecoder:
    """Decodes the payloads of one topic's messages.

    `found_in` finds schemas if the format names no schema file. Without `found_in`, schemas come from files. A JSON
    payload must be an object; with `may_be_array`, it may also be an array.
    """

    def __init__(
        self, written: PayloadFormat, found_in: Definitions | None = None, *, may_be_array: bool = False
    ) -> None:
        self._format = written
        self._may_be_array = may_be_array
        if found_in is None or (written.schema and written.has_schema):
            found_in = SchemaFiles(written)
        self._revisions = Revisions(written.encoding, found_in)
        self._may_be_gzip = written.compression is Compression.AUTO and written.encoding is not Encoding.AVRO
        """True if a payload is decompressed when it begins like gzip. False for Avro, because its records may begin
        with the same bytes."""

    def decode(self, messages: Messages, asking: Asking) -> Iterator[Decoded]:
        """Decode messages. Yield them in order, in parts. A part ends when its content reaches `PART_BYTES`.

        Never raises because of the content of a message. The result for a message does not depend on other messages.
        Raises InvalidSettings if a schema that the settings name cannot be used.
        """
        written, is_enveloped = self._format, self._format.envelope is not Envelope.NONE
        if not is_enveloped and not written.is_read:
            yield Decoded(messages.attributes, [None] * len(messages))
            return
        held = messages.attributes.dicts() if is_enveloped else None
        room, payloads, first = _Room(), list[Any](), 0
        for end, payload in enumerate(self.each(messages, asking, room, held), 1):
            payloads.append(payload)
            if room.left > 0 and end < len(messages):
                continue
            if held is None:
                yield Decoded(messages.between(first, end).attributes, payloads)
            else:
                yield Decoded(Attributes.of_dicts(held[first:end]), payloads)
                held[first:end] = [{}] * len(payloads)  # frees the attributes of the envelopes
            room.left, payloads, first = PART_BYTES, [], end

    def each(
        self, messages: Messages, asking: Asking, room: _Room | None = None, held: list[Mapping[str, str]] | None = None
    ) -> Iterator[Any]:
        """Yield the payload of each message, one at a time, in the form that `decode` yields. `held` contains the
        attributes of each message; the attributes of a message's envelope are added to them."""
        room = room or _Room()
        if self._format.envelope is not Envelope.NONE:
            read = self._of_events(messages.attributes.dicts() if held is None else held, messages, asking, room)
        elif self._format.encoding is Encoding.JSON:
            read = self._of_json(room)
        else:
            read = self._by_schema(messages, asking, room)
        for row, data in enumerate(messages.payloads):
            content = data or b""
            room.left -= len(content)
            try:
                payload = read(row, content)
            except Unreadable as unreadable:
                detail = str(unreadable).encode(errors="backslashreplace").decode()  # may quote unpaired surrogates
                payload = Rejection(RejectionReason.UNREADABLE_PAYLOAD, detail)
            except Unknown as unknown:
                payload = Undecided(str(unknown))
            if self._format.has_schema:
                room.left -= VALUE_BYTES * _values(payload)
            yield payload

    def _of_json(self, room: _Room) -> Read:
        is_gzip, may_be_gzip = self._format.compression is Compression.GZIP, self._may_be_gzip

        def read(_: int, data: bytes) -> Any:
            if is_gzip or (may_be_gzip and data[:3] == MAGIC):
                data = room.inflated(data)
            value = room.parsed(data)
            return value if type(value) is dict else as_object(value, may_be_array=self._may_be_array)

        return read

    def _by_schema(self, messages: Messages, asking: Asking, room: _Room) -> Read:
        names = (*SCHEMA_ATTRIBUTES, CONTENT_ENCODING)
        said = list(zip(*(messages.attributes.column(name).to_pylist() for name in names), strict=True))
        known, may_be_gzip = dict[tuple[str | None, ...], tuple[Callable[[bytes], Any], bool]](), self._may_be_gzip

        def read(row: int, data: bytes) -> Any:
            if (found := known.get(said[row])) is None:
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
        """Return a function that decodes payloads in an envelope. The returned function also adds the envelope's
        attributes to the message's attributes in `held`."""

        def read(row: int, data: bytes) -> Any:
            is_opened = self._format.is_read or _is_structured(_content_type(held[row]))
            if is_opened and (self._is_compressed(held[row]) or (self._may_be_gzip and data[:3] == MAGIC)):
                data = room.inflated(data)
            attributes, content, value = _opened(held[row], data, room)
            held[row] = attributes
            if not self._format.is_read:
                return None
            if self._format.encoding is Encoding.JSON:
                return as_object(value if content is None else room.parsed(content), may_be_array=self._may_be_array)
            codec = self._revisions.codec(attributes, int(messages.published_us[row]), asking)
            if content is None:
                return codec.value(value)
            return codec.text(content) if is_json(attributes) else codec.binary(content)

        return read

    def _is_compressed(self, attributes: Mapping[str, str]) -> bool:
        compression, said = self._format.compression, attributes.get(CONTENT_ENCODING, "").lower()
        return compression is Compression.GZIP or (compression is Compression.AUTO and said == GZIP)


def _values(payload: Any) -> int:
    """Return the number of values inside a decoded payload."""
    held = payload.values() if type(payload) is dict else payload if type(payload) is list else ()
    return len(held) + sum(_values(one) for one in held if type(one) is dict or type(one) is list)


CE_PREFIX = "ce-"
CONTENT_TYPES = "Content-Type", "content-type"
"""Two spellings of the attribute that distinguishes the binding's modes: the binding's spelling, and lower case."""
DATA_CONTENT_TYPE = f"{CE_PREFIX}datacontenttype"
READ_BY = (*SCHEMA_ATTRIBUTES, CONTENT_ENCODING, *CONTENT_TYPES, DATA_CONTENT_TYPE)
"""Attributes on which the decoding of a payload depends, if there is a schema or an envelope."""
STRUCTURED, STRUCTURED_JSON = "application/cloudevents", "application/cloudevents+json"
DATA, DATA_BASE64 = "data", "data_base64"
CONTENT = frozenset({DATA, DATA_BASE64})


def _opened(attributes: Mapping[str, str], data: bytes, room: _Room) -> tuple[Mapping[str, str], bytes | None, Any]:
    """Return the attributes and the data of the CloudEvent in a message. The data are `bytes, None`, or
    `None, value` if they were parsed as part of the event's JSON.

    If the payload is the whole event (structured mode), the event's context overrides attributes of the message. Raises
    Unreadable if such an event is invalid or not in JSON.
    """
    said = _content_type(attributes)
    if not _is_structured(said):
        if said and not attributes.get(DATA_CONTENT_TYPE):
            attributes = {**attributes, DATA_CONTENT_TYPE: said}
        return attributes, data, None
    if _media_type(said) != STRUCTURED_JSON:
        raise Unreadable(f"the CloudEvent's content type is {quoted(said)}; only {STRUCTURED_JSON} can be read")
    event = as_object(room.parsed(data))
    context = {**attributes, **_context(event)}
    if DATA_BASE64 in event:
        return context, _from_base64(event[DATA_BASE64]), None
    value = event.get(DATA)
    declared = context.get(DATA_CONTENT_TYPE)
    if isinstance(value, str) and declared and not _media_type(declared).endswith(("/json", "+json")):
        return context, value.encode(), None
    return context, b"" if value is None else None, value


def _content_type(attributes: Mapping[str, str]) -> str:
    return next((said for name in CONTENT_TYPES if (said := attributes.get(name))), "")


def _is_structured(content_type: str) -> bool:
    return content_type.lower().startswith(STRUCTURED)


def _context(event: Mapping[str, Any]) -> dict[str, str]:
    """Return a CloudEvent's context as attributes, in canonical text. Raises Unreadable if a value has a wrong type."""
    said = {}
    for name, value in event.items():
        if name in CONTENT or value is None:
            continue
        if not isinstance(value, str | bool | int):
            raise Unreadable(f"not a CloudEvent: its {quoted(name)} is {json_kind(value)}")
        said[CE_PREFIX + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return said


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Unreadable(f"not a CloudEvent: its {DATA_BASE64} is not base64 ({error})") from error


def _media_type(written: str) -> str:
    return written.partition(";")[0].strip().lower()
