"""Notes: small objects of the lake, and the kinds they belong to.

A kind defines where its notes are, what they contain, and what to do about a damaged note. A note's key is the part of
its object's name that varies within the kind. A SlotFile stores a note outside the lake, for when the lake is full.
"""

import errno
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AwareDatetime, PlainSerializer, TypeAdapter, ValidationError

from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import (
    CorruptObject,
    DamagedNote,
    NewerFormat,
    ObjectExists,
    ObjectMissing,
    ObjectReplaced,
)
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks, refuse_newer, without_marks

Content = TypeVar("Content")

Moment = Annotated[AwareDatetime, PlainSerializer(iso)]
"""A time in a note that people or other systems read. It is written with milliseconds at most, whereas a plain datetime
is written with microseconds."""


@dataclass(frozen=True, slots=True)
class NoContent:
    """The content of a note whose key says everything."""


@dataclass(frozen=True, slots=True)
class NoteKind(Generic[Content]):
    """A kind of note. A note is an object with the name `<prefix><key><suffix>`, whose key matches the pattern `key`.
    `damaged` is the end of the message about a damaged note: what to do, or what follows."""

    prefix: str
    damaged: str = "it can be derived again"
    key: str = ".+"
    suffix: str = ""

    def name(self, key: str) -> str:
        """Return the name of the object for the note with this key."""
        return f"{self.prefix}{key}{self.suffix}"

    def key_of(self, name: str) -> str | None:
        """Return the key in an object's name; None if the object is not a note of this kind. The inverse of `name`."""
        key = name.removeprefix(self.prefix).removesuffix(self.suffix)
        return key if self.name(key) == name and re.fullmatch(self.key, key) else None

    def encode(self, content: Content) -> bytes:
        """Return a note's content as the bytes of its object."""
        raise NotImplementedError

    def decode(self, written: bytes, place: str) -> Content:
        """Return a note's content, given the bytes of its object. `place` is the object's address, for messages.
        Raises DamagedNote, NewerFormat."""
        raise NotImplementedError

    def broken(self, place: str, why: object) -> DamagedNote:
        """Return the error for a damaged note at `place`."""
        return DamagedNote(f"{place} is damaged ({why}); {self.damaged}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonKind(NoteKind[Content]):
    """A kind of note whose content, of the class `holds`, is stored as a line of JSON.

    Unknown keys are ignored, because later versions of tidemark may add keys. A field with a default may be missing,
    because an earlier version may not have written it. `part_of` says in messages what the note is a part of.
    """

    holds: type[Content]
    suffix: str = ".json"
    part_of: str = "lake"

    def encode(self, content: Content) -> bytes:
        facts = _adapter(cast(Any, self.holds)).dump_python(content, by_alias=True)
        return orjson.dumps(facts | marks(), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)

    def decode(self, written: bytes, place: str) -> Content:
        try:
            facts = orjson.loads(written)
            refuse_newer(place, facts, self.part_of)
            found: Content = _adapter(cast(Any, self.holds)).validate_python(facts)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self.broken(place, " ".join([*map(str, first["loc"]), first["msg"]])) from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self.broken(place, error) from error
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetKind(NoteKind[pa.Table]):
    """A kind of note whose content is an Arrow table, stored as Parquet with its schema's metadata. It has at least the
    `columns`."""

    columns: Sequence[str] = ()
    suffix: str = ".parquet"

    def encode(self, content: pa.Table) -> bytes:
        sink = io.BytesIO()
        marked = content.replace_schema_metadata({**(content.schema.metadata or {}), **marks()})
        pq.write_table(marked, sink, compression="zstd")
        return sink.getvalue()

    def decode(self, written: bytes, place: str) -> pa.Table:
        try:
            rows = pq.read_table(io.BytesIO(written), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self.broken(place, error) from error
        metadata = {key.decode(): value for key, value in (rows.schema.metadata or {}).items()}
        refuse_newer(place, metadata)
        if missing := set(self.columns) - set(rows.column_names):
            raise self.broken(place, f"it has no column {', '.join(sorted(missing))}")
        return rows.replace_schema_metadata(without_marks(metadata) or None)


class Notes(Generic[Content]):
    """The notes of one kind in one lake. `found`, `replace` and `offer` are for notes that can be replaced: they make
    one attempt and take a few seconds at most."""

    def __init__(self, objects: ObjectStore, kind: NoteKind[Content]) -> None:
        self._objects = objects
        self.kind = kind

    def listed(self, within: str = "") -> list[str]:
        """Return the keys that start with `within`, in the order of the objects' names. Raises LakeError."""
        keys = map(self.kind.key_of, self._objects.names(self.kind.prefix + within))
        return [key for key in keys if key is not None]

    def read(self, key: str) -> Content:
        """Return the note with this key. Raises ObjectMissing, DamagedNote, NewerFormat, LakeError."""
        return self.kind.decode(self._objects.read(self.kind.name(key)), self.place(key))

    def readable(self, keys: Iterable[str]) -> Iterator[tuple[str, Content]]:
        """Yield each key with its note. Skip notes that are missing, damaged or of a newer format. For notes on which
        no decision depends."""
        for key in keys:
            with suppress(ObjectMissing, CorruptObject, NewerFormat):
                yield key, self.read(key)

    def find(self, key: str) -> Content | None:
        """Return the note with this key; None if it does not exist. Raises DamagedNote, NewerFormat, LakeError."""
        with suppress(ObjectMissing):
            return self.read(key)
        return None

    def create(self, key: str, content: Content) -> None:
        """Write a new note. Raises ObjectExists, LakeError."""
        self._objects.create(self.kind.name(key), self.kind.encode(content))

    def ensure(self, key: str, content: Content) -> None:
        """Write a new note, unless it exists already. Raises LakeError."""
        with suppress(ObjectExists):
            self.create(key, content)

    def delete(self, *keys: str) -> None:
        """Delete the notes with these keys, if they exist. Makes one request per key. Raises LakeError."""
        for key in keys:
            self._objects.delete(self.kind.name(key))

    def keep_newest(self, count: int) -> None:
        """Delete all notes except the last `count` ones in the order of their keys. Raises LakeError."""
        self.delete(*self.listed()[:-count])

    def place(self, key: str) -> str:
        """Return the human-readable address of a note."""
        return f"{self._objects.uri}/{self.kind.name(key)}"

    def found(self, key: str) -> tuple[Content | None, int]:
        """Return a note and its generation. A note that does not exist gives None and 0; a damaged one gives None and
        its generation. Raises NewerFormat, LakeError."""
        try:
            written, generation = self._objects.read_generation(self.kind.name(key))
        except ObjectMissing:
            return None, 0
        with suppress(DamagedNote):
            return self.kind.decode(written, self.place(key)), generation
        return None, generation

    def replace(self, key: str, content: Content, generation: int) -> int:
        """Overwrite a note that has this generation, and return its new generation. Raises ObjectReplaced if the note
        has another generation, LakeError."""
        return self._objects.replace(self.kind.name(key), self.kind.encode(content), generation)

    def offer(self, key: str, content: Content, generation: int) -> None:
        """Like `replace`, but do nothing if another writer has replaced the note first. Raises LakeError."""
        with suppress(ObjectReplaced):
            self.replace(key, content, generation)


@cache
def _adapter(holds: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(holds)


SLOT, SLOTS = 16 << 10, 2
"""Size of a slot in bytes, and number of slots. The slots are written in turn, so that an interrupted write leaves the
other slot intact."""

WRITTEN = re.compile(rb'\{"sum":"([0-9a-f]{16})",("turn":([0-9]{1,18}),"said":(.*))\}', re.DOTALL)
"""Matches the content of a slot: a checksum of the rest, the turn number, and the note."""


class SlotFile(Generic[Content]):
    """A file with one note, for any number of writers. If two concurrent writers garble a slot, its checksum reveals
    this, and readers use the other slot."""

    def __init__(self, path: Path, kind: NoteKind[Content], mode: int) -> None:
        self.path = path
        self._kind, self._mode = kind, mode

    def read(self) -> Content | None:
        """Return the newest note; None if the file does not exist or has no intact slot. Raises NewerFormat,
        DamagedNote, OSError."""
        _, text = self._newest()
        return None if text is None else self._kind.decode(text, str(self.path))

    def write(self, *notes: Content, sync: bool = False) -> None:
        """Write the first of these notes that fits into a slot. With `sync`, the note survives a crash of the machine.
        Raises OSError, in particular if no note fits."""
        turn = self._newest()[0] + 1
        line = next((line for note in notes if len(line := self._line(turn, note)) < SLOT), None)
        if line is None:
            raise OSError(errno.EFBIG, "the note does not fit into a slot", str(self.path))
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, self._mode)
        try:
            if os.fstat(number).st_size != SLOT * SLOTS:  # write real bytes: a full disk could not fill a sparse file
                self._put(number, b" " * (SLOT * SLOTS), 0)
                sync = True
            self._put(number, line.ljust(SLOT - 1) + b"\n", turn % SLOTS * SLOT)
            if sync:
                os.fsync(number)
        finally:
            os.close(number)

    def _newest(self) -> tuple[int, bytes | None]:
        """Return the turn and the note of the newest intact slot; -1 and None if no slot is intact."""
        try:
            with self.path.open("rb") as file:
                written = file.read(SLOT * SLOTS)
        except FileNotFoundError:
            return -1, None
        slots = (WRITTEN.fullmatch(written[at : at + SLOT].rstrip()) for at in range(0, SLOT * SLOTS, SLOT))
        whole = [(int(slot[3]), slot[4]) for slot in slots if slot and slot[1] == _sum(slot[2])]
        return max(whole, default=(-1, None))

    def _line(self, turn: int, note: Content) -> bytes:
        text = b'"turn":%d,"said":%s' % (turn, self._kind.encode(note).strip())
        return b'{"sum":"%s",%s}' % (_sum(text), text)

    def _put(self, number: int, content: bytes, at: int) -> None:
        written = os.pwrite(number, content, at)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _sum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()
