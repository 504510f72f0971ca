"""The readers of a schema's revisions, each made once and kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cachetools import LRUCache

from tidemark.pipeline.contract.payloads.definitions import Definition, Definitions
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable, quoted
from tidemark.pipeline.errors import InvalidSettings

MOST_REVISIONS = 100
"""Revisions whose readers are kept. Pub/Sub keeps 20 of a schema."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The moment at which a batch is judged, and the time after its publish time that a message waits for a schema that
    does not exist, both in microseconds. A message that has waited so long is rejected."""

    at_us: int
    patience_us: int = 0


class Codec(Protocol):
    """Reads the payloads of one schema. Every method raises Unreadable."""

    def binary(self, data: bytes) -> Any: ...

    def text(self, data: bytes) -> Any: ...

    def value(self, value: Any) -> Any: ...


class Revisions:
    """Finds the reader of the revision that a message was written with."""

    def __init__(self, encoding: Encoding, found_in: Definitions | None) -> None:
        self._encoding = encoding
        self._found_in = found_in
        self._kept: LRUCache[str, Codec | str] = LRUCache(MOST_REVISIONS)

    def codec(self, attributes: Mapping[str, str], published_us: int, asking: Asking) -> Codec:
        """The reader.

        Raises Unreadable for a message that names no schema, one that is not accepted, or one that cannot be used. Of a
        revision that does not exist it raises Unknown, and Unreadable once that was answered later than the message's
        patience. Raises InvalidSettings for a schema that the settings name and that cannot be used.
        """
        if self._found_in is None:
            raise InvalidSettings(
                "message.schema is empty, and there is no connection to Pub/Sub to ask for schemas; name a file"
            )
        name = self._found_in.name(attributes)
        kept = self._kept.get(name)
        if kept is None:
            definition, answered_us = self._found_in.find(name, asking.at_us)
            if definition is None:
                absent = f"its schema {quoted(name)} does not exist"
                if answered_us < published_us + asking.patience_us:
                    raise Unknown(absent)
                raise Unreadable(absent)
            kept = self._kept[name] = self._made(definition)
        if isinstance(kept, str):
            raise Unreadable(kept)
        return kept

    def _made(self, definition: Definition) -> Codec | str:
        try:
            return codec_of(definition, self._encoding)
        except Unreadable as error:
            if definition.is_configured:
                raise InvalidSettings(f"message.schema: {error}") from error
            return str(error)


def codec_of(definition: Definition, encoding: Encoding) -> Codec:
    """The reader by a schema. Raises Unreadable. Each library is imported where a topic needs it."""
    if definition.encoding is not encoding:
        raise Unreadable(f"the schema {definition.origin} is {definition.encoding}: set message.payload to that")
    if encoding is Encoding.AVRO:
        from tidemark.pipeline.contract.payloads.avro import AvroCodec

        return AvroCodec(definition)
    from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec

    return ProtobufCodec(definition)
