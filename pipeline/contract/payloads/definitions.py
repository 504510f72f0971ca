"""Sources of schemas: files, or any other implementation of `Definitions`. A schema is found by the revision that a
message names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unreadable, quoted
from tidemark.pipeline.errors import InvalidSettings

SCHEMA_ENCODING = "googclient_schemaencoding"
SCHEMA_NAME = "googclient_schemaname"
SCHEMA_REVISION = "googclient_schemarevisionid"
"""Attributes that Pub/Sub sets on each message of a topic with a schema."""

NAME = re.compile(r"projects/[A-Za-z0-9][A-Za-z0-9:.-]{0,99}/schemas/[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")
"""A schema's full name in Pub/Sub."""

REVISION = re.compile(r"[A-Za-z0-9-]{1,64}")
"""A revision id. Pub/Sub's have 8 hexadecimal digits; files may have other names."""

DELETED_REVISION = "_deleted-schema-revision_"
DELETED_SCHEMA = "_deleted-schema_"

SUFFIXES: Mapping[Encoding, tuple[str, ...]] = {Encoding.AVRO: (".avsc",), Encoding.PROTOBUF: (".proto", ".binpb")}
"""Suffixes of schema files. A `.binpb` is a FileDescriptorSet, as written by `protoc --descriptor_set_out`."""

LARGEST_DEFINITION = 1 << 20
"""Most bytes of a schema. Pub/Sub allows 300 KB."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A schema as written: its text, or a compiled descriptor set. `origin` is its human-readable name.

    `is_configured` is True if the settings name its file, so that an error in it is an error of the settings rather
    than of a message.
    """

    origin: str
    encoding: Encoding
    content: bytes
    is_compiled: bool = False
    is_configured: bool = False


class Definitions(Protocol):
    """Finds the schema that a message was written with. Moments are microseconds since the epoch."""

    def name(self, attributes: Mapping[str, str]) -> str:
        """Return the name of the message's schema, by which it is found and cached. Raises Unreadable, also if the
        pipeline does not accept the schema."""
        ...

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        """Return the schema of that name, or None if it does not exist, and the moment of that lookup. Raises Unknown
        if it cannot be known now."""
        ...


class SchemaFiles:
    """One schema file for all messages, or a folder with a file per revision, named by its id. Missing or invalid files
    are found only when a schema is looked up."""

    def __init__(self, path: str, encoding: Encoding) -> None:
        self._path, self._encoding = Path(path), encoding
        self._is_folder = self._path.is_dir()

    def name(self, attributes: Mapping[str, str]) -> str:
        return revision_of(attributes) if self._is_folder else str(self._path)

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        in_folder = [self._path / f"{name}{suffix}" for suffix in SUFFIXES[self._encoding]]
        for path in in_folder if self._is_folder else [self._path]:
            found = _read(path, self._encoding)
            if found is not None:
                return found, at_us
        if not self._is_folder:
            raise InvalidSettings(f"message.schema = {str(self._path)!r}: there is no such file or folder")
        return None, at_us


def revision_of(attributes: Mapping[str, str]) -> str:
    """Return the revision that a message names. Raises Unreadable."""
    revision = attributes.get(SCHEMA_REVISION)
    if not revision:
        raise Unreadable(f"the attribute {SCHEMA_REVISION}, which names the schema, is absent")
    if revision == DELETED_REVISION:
        raise Unreadable("the revision of its schema was deleted in Pub/Sub")
    if not REVISION.fullmatch(revision):
        raise Unreadable(f"{SCHEMA_REVISION} = {quoted(revision)} is not a schema revision")
    return revision


def is_json(attributes: Mapping[str, str]) -> bool:
    """True if a payload is in its schema's JSON form; without the attribute it is binary. Raises Unreadable."""
    encoding = attributes.get(SCHEMA_ENCODING) or "BINARY"
    if encoding not in ("JSON", "BINARY"):
        raise Unreadable(f"{SCHEMA_ENCODING} = {quoted(encoding)} is neither JSON nor BINARY")
    return encoding == "JSON"


def _read(path: Path, encoding: Encoding) -> Definition | None:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_DEFINITION + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidSettings(f"the schema {path} of message.schema cannot be read: {error}") from error
    if len(content) > LARGEST_DEFINITION:
        raise InvalidSettings(f"the schema {path} of message.schema has more than {LARGEST_DEFINITION} bytes")
    return Definition(str(path), encoding, content, is_compiled=path.suffix == ".binpb", is_configured=True)
