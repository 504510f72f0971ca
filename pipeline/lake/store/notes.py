"""Notes: small objects of a lake, each stored as JSON or Parquet.

A kind of note defines the names of the objects, the class of their content, and what to do if a note is damaged. A
note's key is the variable part of its object's name. A SlotFile stores a note outside the lake, for example while the
lake's disk is full.
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
from tidemark.pipeline.errors import UNREADABLE, DamagedNote, NewerFormat, ObjectExists, ObjectMissing, ObjectReplaced
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks, refuse_newer, without_marks

Content = TypeVar("Content")

Moment = Annotated[AwareDatetime, PlainSerializer(iso)]
"""A time in a note, written with at most millisecond precision, because people and other systems read it. (A plain
datetime is written with microseconds.)"""


@dataclass(frozen=True, slots=True)
class NoContent:
    """The content of a note that consists of its key only."""


@dataclass(frozen=True, slots=True)
class NoteKind(Generic[Content]):
    """A kind of note. The name of a note's object is `<prefix><key><suffix>`. The field `key` is the regular expression
    that keys match. The field `damaged` ends the error message for a damaged note, and says what to do."""

    prefix: str
    damaged: str = "it can be derived again"
    key: str = ".+"
    suffix: str = ""

    def name(self, key: str) -> str:
        """Return the name of the object for the note with this key."""
        return f"{self.prefix}{key}{self.suffix}"

    def key_of(self, name: str) -> str | None:
        """Return the key of the note that is stored as the object `name`; None if the object is not a note of this
        kind."""
        key = name.removeprefix(self.prefix).removesuffix(self.suffix)
        return key if self.name(key) == name and re.fullmatch(self.key, key) else None

    def encode(self, content: Content) -> bytes:
        """Return the content of a note as the bytes to store."""
        raise NotImplementedError

    def decode(self, written: bytes, place: str) -> Content:
        """Return the content of a note, given its stored bytes. `place` is the address of its object, for error
        messages. Raises DamagedNote and NewerFormat."""
        raise NotImplementedError

    def broken(self, place: str, why: object) -> DamagedNote:
        """Return the error for a damaged note at the address `place`."""
        return DamagedNote(f"{place} is damaged ({why}); {self.damaged}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonKind(NoteKind[Content]):
    """A kind of note that is stored as one line of JSON. `holds` is the class of its content.

    Unknown keys are ignored, because later versions of tidemark may add keys. Fields with a default may be missing,
    because earlier versions did not write them. `part_of` names what the notes belong to, for error messages.
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
    """A kind of note that is stored as Parquet. Its content is an Arrow table with at least the columns `columns`. The
    metadata of the table's schema is stored too."""

    columns: Sequence[str] = ()
    suffix: str = ".parquet"

    def encode(self, content: pa.Table) -> bytes:
        return parquet_bytes(content.replace_schema_metadata({**(content.schema.metadata or {}), **marks()}))

    def decode(self, written: bytes, place: str) -> pa.Table:
        try:
            rows = parquet_rows(written)
        except (pa.ArrowException, OSError) as error:
            raise self.broken(place, error) from error
        metadata = {key.decode(): value for key, value in (rows.schema.metadata or {}).items()}
        refuse_newer(place, metadata)
        if missing := set(self.columns) - set(rows.column_names):
            raise self.broken(place, f"it has no column {', '.join(sorted(missing))}")
        return rows.replace_schema_metadata(without_marks(metadata) or None)


def parquet_bytes(rows: pa.Table, **options: Any) -> bytes:
    """Return rows as a Parquet object. `options` are arguments of Arrow's `write_table`."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", **options)
    return sink.getvalue()


def parquet_rows(written: bytes) -> pa.Table:
    """Return the rows of a Parquet object. Raises ArrowException or OSError if it is damaged.

    Arrow's own `read_table` reads ahead in a thread. If the interpreter ends meanwhile, that thread aborts the process.
    """
    return pq.ParquetFile(pa.BufferReader(written)).read(use_threads=False)


class Notes(Generic[Content]):
    """The notes of one kind in one lake. `found`, `replace` and `offer` are for replaceable notes. Each makes one
    attempt, which takes a few seconds at most."""

    def __init__(self, objects: ObjectStore, kind: NoteKind[Content]) -> None:
        self._objects = objects
        self.kind = kind

    def listed(self, within: str = "") -> list[str]:
        """Return the keys of all notes whose key starts with `within`, in the order of their objects' names. Raises
        LakeError."""
        keys = map(self.kind.key_of, self._objects.names(self.kind.prefix + within))
        return [key for key in keys if key is not None]

    def read(self, key: str) -> Content:
        """Return the content of a note. Raises ObjectMissing, DamagedNote, NewerFormat and LakeError."""
        return self.kind.decode(self._objects.read(self.kind.name(key)), self.place(key))

    def readable(self, keys: Iterable[str]) -> Iterator[tuple[str, Content]]:
        """Yield each key with the content of its note. Skips notes that are missing, damaged or of a newer format. Use
        it only where an incomplete result does no harm."""
        for key in keys:
            with suppress(*UNREADABLE, NewerFormat):
                yield key, self.read(key)

    def find(self, key: str) -> Content | None:
        """Return the content of the note with this key; None if the note does not exist. Raises DamagedNote,
        NewerFormat and LakeError."""
        with suppress(ObjectMissing):
            return self.read(key)
        return None

    def create(self, key: str, content: Content) -> None:
        """Write a new note. Raises ObjectExists if the note exists, and LakeError."""
        self._objects.create(self.kind.name(key), self.kind.encode(content))

    def ensure(self, key: str, content: Content) -> None:
        """Write a new note. Do nothing if the note exists. Raises LakeError."""
        with suppress(ObjectExists):
            self.create(key, content)

    def delete(self, *keys: str) -> None:
        """Delete the notes with these keys, with one request per key. Notes that do not exist are skipped. Raises
        LakeError."""
        for key in keys:
            self._objects.delete(self.kind.name(key))

    def keep_newest(self, count: int) -> None:
        """Delete all notes except those with the last `count` keys. `count` must be positive. Raises LakeError."""
        self.delete(*self.listed()[:-count])

    def place(self, key: str) -> str:
        """Return the address of a note, for error messages."""
        return f"{self._objects.uri}/{self.kind.name(key)}"

    def found(self, key: str) -> tuple[Content | None, int]:
        """Return the content and the generation of a replaceable note. Return None and 0 if the note does not exist,
        and None and its generation if the note is damaged. Raises NewerFormat and LakeError."""
        try:
            written, generation = self._objects.read_generation(self.kind.name(key))
        except ObjectMissing:
            return None, 0
        with suppress(DamagedNote):
            return self.kind.decode(written, self.place(key)), generation
        return None, generation

    def replace(self, key: str, content: Content, generation: int) -> int:
        """Overwrite the note if it still has this generation, and return its new generation. Raises ObjectReplaced if
        the note has another generation, and LakeError."""
        return self._objects.replace(self.kind.name(key), self.kind.encode(content), generation)

    def offer(self, key: str, content: Content, generation: int) -> None:
        """Overwrite the note if it still has this generation. Do nothing if another writer has replaced the note.
        Raises LakeError."""
        with suppress(ObjectReplaced):
            self.replace(key, content, generation)


@cache
def _adapter(holds: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(holds)


SLOT, SLOTS = 16 << 10, 2
"""SLOT is the size of a slot in bytes, and SLOTS the number of slots in a file. Writes alternate between the slots, so
an interrupted write leaves one slot intact."""

WRITTEN = re.compile(rb'\{"sum":"([0-9a-f]{16})",("turn":([0-9]{1,18}),"said":(.*))\}', re.DOTALL)
"""Matches the content of a slot: a checksum of the rest, a number that increases with each write, and the note."""


class SlotFile(Generic[Content]):
    """A file that stores one note, and that several processes may write. If two concurrent writes damage a slot, its
    checksum shows this, and readers use the other slot."""

    def __init__(self, path: Path, kind: NoteKind[Content], mode: int) -> None:
        self.path = path
        self._kind, self._mode = kind, mode

    def read(self) -> Content | None:
        """Return the newest intact note. Return None if the file does not exist, or if no slot is intact. Raises
        NewerFormat, DamagedNote and OSError."""
        _, text = self._newest()
        return None if text is None else self._kind.decode(text, str(self.path))

    def write(self, note: Content, *, sync: bool = False) -> None:
        """Write the note. With `sync`, the note survives a crash of the machine. Raises OSError, also if the note does
        not fit into a slot."""
        turn = self._newest()[0] + 1
        text = b'"turn":%d,"said":%s' % (turn, self._kind.encode(note).strip())
        line = b'{"sum":"%s",%s}' % (_sum(text), text)
        if len(line) >= SLOT:
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
        try:
            with self.path.open("rb") as file:
                written = file.read(SLOT * SLOTS)
        except FileNotFoundError:
            return -1, None
        slots = (WRITTEN.fullmatch(written[at : at + SLOT].rstrip()) for at in range(0, SLOT * SLOTS, SLOT))
        whole = [(int(slot[3]), slot[4]) for slot in slots if slot and slot[1] == _sum(slot[2])]
        return max(whole, default=(-1, None))

    def _put(self, number: int, content: bytes, at: int) -> None:
        written = os.pwrite(number, content, at)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _sum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()
