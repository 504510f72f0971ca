"""The readers of a schema's revisions, each made once and kept."""

from collections.abc import Mapping
from typing import Any, Protocol

from cachetools import LRUCache

from tidemark.pipeline.contract.payloads.definitions import Definition, Definitions
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unreadable, quoted
from tidemark.pipeline.errors import InvalidSettings

MOST_REVISIONS = 100
"""Revisions whose readers are kept. Pub/Sub keeps 20 of a schema."""

MOST_MISSES = 20
"""Revisions that are looked up in vain for one batch. Each is a call to Pub/Sub, or a look at the disk."""


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

    def codec(self, attributes: Mapping[str, str], missing: dict[str, str]) -> Codec:
        """The reader. `missing` has the names that were looked up in vain for this batch, with the reasons; a later
        batch looks anew, as a revision may be younger than what Pub/Sub knows everywhere.

        Raises Unreadable for a message that names no schema, or one that does not exist or cannot be used; and
        TidemarkError where none can be had now.
        """
        if self._found_in is None:
            raise InvalidSettings(
                "message.schema is empty, and there is no connection to Pub/Sub to ask for schemas; name a file"
            )
        name = self._found_in.name(attributes)
        kept = self._kept.get(name)
        if kept is None:
            kept = self._look_up(name, self._found_in, missing)
        if isinstance(kept, str):
            raise Unreadable(kept)
        return kept

    def _look_up(self, name: str, found_in: Definitions, missing: dict[str, str]) -> Codec | str:
        if name in missing:
            return missing[name]
        if len(missing) >= MOST_MISSES:
            return (
                f"its schema {quoted(name)} was not looked up, as {MOST_MISSES} others of its batch cannot be had; "
                "requeue it"
            )
        try:
            definition = found_in.find(name)
        except Unreadable as error:
            missing[name] = str(error)
            return missing[name]
        if definition is None:
            missing[name] = f"its schema {quoted(name)} does not exist"
            return missing[name]
        made: Codec | str
        try:
            made = codec_of(definition, self._encoding)
        except Unreadable as error:
            if definition.is_configured:
                raise InvalidSettings(f"message.schema: {error}") from error
            made = str(error)
        self._kept[name] = made
        return made


def codec_of(definition: Definition, encoding: Encoding) -> Codec:
    """The reader by a schema. Raises Unreadable. Each library is imported where a topic needs it."""
    if definition.encoding is not encoding:
        raise Unreadable(f"the schema {definition.origin} is {definition.encoding}: set message.payload to that")
    if encoding is Encoding.AVRO:
        from tidemark.pipeline.contract.payloads.avro import AvroCodec

        return AvroCodec(definition)
    from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec

    return ProtobufCodec(definition)
