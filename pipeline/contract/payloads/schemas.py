"""The formats of payloads, and their schemas. A message names the revision of its schema. Each revision has a cached
codec, which decodes payloads."""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from cachetools import LRUCache

from tidemark.pipeline.contract.payloads.parsing import quoted
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable
from tidemark.pipeline.errors import InvalidSettings

CONTAINER = b"Obj\x01"
"""First bytes of an Avro object container file. If an unreadable payload begins with them, it is almost certainly
such a file."""


class Encoding(StrEnum):
    """The encoding of a payload's values. NONE and BYTES are not decoded."""

    NONE = "none"
    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compression(StrEnum):
    """The compression of payloads. AUTO detects gzip by an attribute of the message or, except in Avro, by the first
    bytes of the payload."""

    NONE = "none"
    GZIP = "gzip"
    AUTO = "auto"


class Envelope(StrEnum):
    """The envelope around a payload. CLOUDEVENTS: each message is a CloudEvent, and its data is the payload."""

    NONE = ""
    CLOUDEVENTS = "cloudevents"


@dataclass(frozen=True, slots=True)
class PayloadFormat:
    """The format of payloads. `schema` is the path of a schema file, or of a folder of such files. An empty `schema`
    means the topic's schema in Pub/Sub. `content` is the file's content, which the contract's digest covers. If
    `content` is empty, the decoder reads the file on first use."""

    encoding: Encoding = Encoding.JSON
    compression: Compression = Compression.AUTO
    envelope: Envelope = Envelope.NONE
    schema: str = ""
    content: bytes = field(default=b"", repr=False)

    @property
    def is_read(self) -> bool:
        """True if payloads are decoded."""
        return self.encoding not in (Encoding.NONE, Encoding.BYTES)

    @property
    def has_schema(self) -> bool:
        return self.encoding in (Encoding.AVRO, Encoding.PROTOBUF)

    @property
    def asks_for_schemas(self) -> bool:
        """True if payloads are read with the schema that the topic has in Pub/Sub."""
        return self.has_schema and not self.schema


SCHEMA_ENCODING = "googclient_schemaencoding"
SCHEMA_NAME = "googclient_schemaname"
SCHEMA_REVISION = "googclient_schemarevisionid"
SCHEMA_ATTRIBUTES = SCHEMA_NAME, SCHEMA_REVISION, SCHEMA_ENCODING
"""The attributes that Pub/Sub sets on each message of a topic with a schema."""

NAME = re.compile(r"projects/[A-Za-z0-9][A-Za-z0-9:.-]{0,99}/schemas/[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")

REVISION = re.compile(r"[A-Za-z0-9-]{1,64}")
"""Matches the id of a schema revision. In Pub/Sub it has 8 hexadecimal digits. Schema files may have other ids."""

DELETED_REVISION = "_deleted-schema-revision_"
DELETED_SCHEMA = "_deleted-schema_"

SUFFIXES: Mapping[Encoding, tuple[str, ...]] = {Encoding.AVRO: (".avsc",), Encoding.PROTOBUF: (".proto", ".binpb")}
"""File suffixes of schemas. A `.binpb` file is a FileDescriptorSet, written by `protoc --descriptor_set_out`."""

LARGEST_DEFINITION = 1 << 20
"""Maximum size of a schema in bytes. Pub/Sub allows 300 KB."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A schema: its text, or a compiled protobuf descriptor set. `origin` is the schema's human-readable name.

    `is_configured` is true if the settings name the schema's file. An error in the schema is then an error of the
    settings, not of the message.
    """

    origin: str
    encoding: Encoding
    content: bytes
    is_compiled: bool = False
    is_configured: bool = False


class Definitions(Protocol):
    """Finds the schema with which a message was written. Times are microseconds since the epoch."""

    def name(self, attributes: Mapping[str, str]) -> str:
        """Return the key of the message's schema, for `find` and for caches. Raises Unreadable if the message names no
        schema, or one that the pipeline does not accept."""

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        """Return the schema with this key (None if it does not exist), and the time at which it was looked up. Raises
        Unknown if it cannot be looked up now."""


class SchemaFiles:
    """Finds schemas in one file for all messages, or in a folder with one file per revision. In a folder, a file's name
    without the suffix is the id of its revision. A missing or invalid file is an error only when it is needed."""

    def __init__(self, written: PayloadFormat) -> None:
        self._path, self._encoding = Path(written.schema), written.encoding
        self._is_folder = self._path.is_dir()
        self._content = b"" if self._is_folder else written.content

    def name(self, attributes: Mapping[str, str]) -> str:
        return revision_of(attributes) if self._is_folder else str(self._path)

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        in_folder = [self._path / f"{name}{suffix}" for suffix in SUFFIXES[self._encoding]]
        for path in in_folder if self._is_folder else [self._path]:
            if (found := _read(path, self._encoding, self._content)) is not None:
                return found, at_us
        if not self._is_folder:
            raise InvalidSettings(f"message.schema = {str(self._path)!r}: there is no such file or folder")
        return None, at_us


def schema_of(attributes: Mapping[str, str]) -> str:
    """Return the full name of the schema that a message names. Raises Unreadable if there is no valid name."""
    if not (schema := attributes.get(SCHEMA_NAME)):
        raise Unreadable(
            f"the attribute {SCHEMA_NAME} is missing: give the topic a schema, or name a file in message.schema"
        )
    if schema.rpartition("/")[2] == DELETED_SCHEMA:
        raise Unreadable("the message's schema was deleted in Pub/Sub")
    if not NAME.fullmatch(schema):
        raise Unreadable(f"{SCHEMA_NAME} = {quoted(schema)} is not of the form projects/PROJECT/schemas/NAME")
    return schema


def revision_of(attributes: Mapping[str, str]) -> str:
    """Return the id of the schema revision that a message names. Raises Unreadable if there is no valid id."""
    if not (revision := attributes.get(SCHEMA_REVISION)):
        raise Unreadable(f"the message has no attribute {SCHEMA_REVISION}, so the revision of its schema is unknown")
    if revision == DELETED_REVISION:
        raise Unreadable("the revision of the message's schema was deleted in Pub/Sub")
    if not REVISION.fullmatch(revision):
        raise Unreadable(f"{SCHEMA_REVISION} = {quoted(revision)} is not a schema revision")
    return revision


def is_json(attributes: Mapping[str, str]) -> bool:
    """Return True if a message's payload is in the JSON encoding of its schema. Without the attribute SCHEMA_ENCODING
    it is binary. Raises Unreadable if the attribute is invalid."""
    encoding = attributes.get(SCHEMA_ENCODING) or "BINARY"
    if encoding not in ("JSON", "BINARY"):
        raise Unreadable(f"{SCHEMA_ENCODING} = {quoted(encoding)} is neither JSON nor BINARY")
    return encoding == "JSON"


def _read(path: Path, encoding: Encoding, content: bytes) -> Definition | None:
    try:
        if not content:
            with path.open("rb") as file:
                content = file.read(LARGEST_DEFINITION + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidSettings(f"the file {path} of message.schema cannot be read: {error}") from error
    if len(content) > LARGEST_DEFINITION:
        raise InvalidSettings(f"the file {path} of message.schema has more than {LARGEST_DEFINITION} bytes")
    return Definition(str(path), encoding, content, is_compiled=path.suffix == ".binpb", is_configured=True)


MOST_REVISIONS = 100
"""Maximum number of schema revisions whose codecs are cached. Pub/Sub keeps at most 20 revisions per schema."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The time at which a batch is judged, and the maximum wait for a schema that does not exist yet. Both are in
    microseconds. The wait begins at a message's publish time. A message that has waited longer is rejected."""

    at_us: int
    patience_us: int = 0


LONGEST_VARINT = 63
"""Maximum number of bits before the last byte of an encoded number: nine bytes with seven bits each."""


def finite(value: float, *_: Any) -> float | None:
    """Return the number, or None if it is infinite or NaN, because JSON has neither."""
    return value if math.isfinite(value) else None


def as_base64(value: bytes, *_: Any) -> str:
    """Return bytes as base64 text, because JSON has no bytes."""
    return base64.b64encode(value).decode()


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number that begins at a position in the bytes, and the position after it. Avro and protobuf
    encode numbers alike: 7 bits per byte, the lowest first. Raises IndexError if the bytes end too soon, and ValueError
    if the number takes more than ten bytes."""
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > LONGEST_VARINT:
            raise ValueError("a number has more than 64 bits")
    return value | byte << shift, at + 1


class Codec(Protocol):
    """Decodes payloads that were written with one schema. All methods raise Unreadable for any other payload."""

    def binary(self, data: bytes) -> Any: ...

    def text(self, data: bytes) -> Any: ...

    def value(self, value: Any) -> Any: ...


class Revisions:
    """A cache of codecs. Each codec decodes payloads with one schema revision."""

    def __init__(self, encoding: Encoding, found_in: Definitions) -> None:
        self._encoding = encoding
        self._found_in = found_in
        self._kept: LRUCache[str, Codec | str] = LRUCache(MOST_REVISIONS)
        self._failed: LRUCache[str, tuple[int, str]] = LRUCache(MOST_REVISIONS)  # per schema: when, and the error

    def codec(self, attributes: Mapping[str, str], published_us: int, asking: Asking) -> Codec:
        """Return the codec of the schema revision that a message names.

        - Raises Unreadable if the message names no schema, or a schema that is not accepted or cannot be used.
        - Raises Unknown if the schema cannot be looked up or compiled now. If it does not exist, raises Unknown while
          the message may still wait for it, and Unreadable after that.
        - Raises InvalidSettings if a schema that the settings name cannot be used.
        """
        name = self._found_in.name(attributes)
        if (kept := self._kept.get(name)) is None:
            definition, answered_us = self._found_in.find(name, asking.at_us)
            if definition is None:
                absent = f"its schema {quoted(name)} does not exist"
                if answered_us < published_us + asking.patience_us:
                    raise Unknown(absent)
                raise Unreadable(absent)
            kept = self._kept[name] = self._made(name, definition, asking.at_us)
        if isinstance(kept, str):
            raise Unreadable(kept)
        return kept

    def _made(self, name: str, definition: Definition, at_us: int) -> Codec | str:
        failed_us, why = self._failed.get(name, (None, ""))
        if failed_us == at_us:  # once per batch, since an attempt may take half a minute
            raise Unknown(why)
        try:
            return codec_of(definition, self._encoding)
        except Unknown as error:
            self._failed[name] = at_us, str(error)
            raise
        except Unreadable as error:
            if definition.is_configured:
                raise InvalidSettings(f"message.schema: {error}") from error
            return str(error)


def codec_of(definition: Definition, encoding: Encoding) -> Codec:
    """Return the codec that decodes payloads with a schema. Raises Unreadable if the schema cannot be used, and Unknown
    if its compilation was interrupted. The encoding's library is imported here, so that it is loaded only if needed."""
    if definition.encoding is not encoding:
        raise Unreadable(
            f"the schema {definition.origin} is {definition.encoding}: set message.payload to {definition.encoding}"
        )
    if encoding is Encoding.AVRO:
        from tidemark.pipeline.contract.payloads.avro import AvroCodec

        return AvroCodec(definition)
    from tidemark.pipeline.contract.payloads.protobuf import ProtobufCodec

    return ProtobufCodec(definition)
