"""Codecs of schema revisions, each created once and cached."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cachetools import LRUCache

from tidemark.pipeline.contract.payloads.definitions import Definition, Definitions
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable, quoted
from tidemark.pipeline.errors import InvalidSettings

MOST_REVISIONS = 100
"""Most revisions whose codecs are cached. Pub/Sub keeps 20 per schema."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The moment at which a batch is judged, and how long after its publish time a message waits for a schema that does
    not exist before it is rejected. Both in microseconds."""

    at_us: int
    patience_us: int = 0


class Codec(Protocol):
    """Reads the payloads of one schema. Every method raises Unreadable."""

    def binary(self, data: bytes) -> Any: ...

    def text(self, data: bytes) -> Any: ...

    def value(self, value: Any) -> Any: ...


class Revisions:
    """Finds the codec of the revision that a message was written with."""

    def __init__(self, encoding: Encoding, found_in: Definitions | None) -> None:
        self._encoding = encoding
        self._found_in = found_in
        self._kept: LRUCache[str, Codec | str] = LRUCache(MOST_REVISIONS)

    def codec(self, attributes: Mapping[str, str], published_us: int, asking: Asking) -> Codec:
        """Return the codec of the message's schema revision.

        Raises Unreadable if the message names no schema, or one that is not accepted or cannot be used. If the revision
        does not exist, raises Unknown, or Unreadable if it was looked up after the message's patience had passed.
        Raises InvalidSettings if a schema that the settings name cannot be used.
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
    """Return the codec of a schema. Raises Unreadable. Each library is imported only if a topic needs it."""
    if definition.encoding is not encoding:
        raise Unreadable(f"the schema {definition.origin} is {definition.encoding}: set message.payload to that")
    if encoding is Encoding.AVRO:
        from tidemark.pipeline.contract.payloads.avro import AvroCodec

        return AvroCodec(definition)
    from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec

    return ProtobufCodec(definition)
