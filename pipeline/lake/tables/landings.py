"""Landings under a name: Parquet objects beside a manifest that lists them, and the end of a batch of landings.

The manifest is written last and create-only. Of all readers that land under one name, one creates it, and the others
serve what it lists. Objects have no folder of their own, so that no empty folders pile up on disk.
"""

import contextlib
import io
import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.errors import CorruptObject, ObjectExists
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.heartbeats import PARTITION
from tidemark.pipeline.version import marks, refuse_newer

FOLDER = "landings/"
OVER = "over"
FENCES_KEPT = 2
"""Newest fences that stay: a listing that runs while one is written and an older one deleted sees one of them."""

DIGITS = 9
NUMBERED = re.compile(r"\d{9}")


def manifest_name(name: str) -> str:
    """The object that says that something landed under this name."""
    return f"{FOLDER}{name}.json"


def piece_name(name: str, attempt: str, number: int) -> str:
    """An object with heartbeats that an attempt to land under this name writes."""
    return f"{FOLDER}{name}-{attempt}-{number}.parquet"


def encode_piece(rows: pa.Table) -> bytes:
    """Rows of `heartbeats` as a Parquet file, without the partition column."""
    buffer = io.BytesIO()
    pq.write_table(rows.drop_columns(PARTITION).replace_schema_metadata(marks()), buffer, compression="zstd")
    return buffer.getvalue()


def read_piece(objects: ObjectStore, piece: str) -> pa.Table:
    """A piece's rows. Raises ObjectMissing, CorruptObject, NewerFormat."""
    try:
        rows = pq.read_table(io.BytesIO(objects.read(piece)))
    except pa.ArrowException as error:
        raise CorruptObject(
            f"{objects.uri}/{piece} is damaged ({error}); put back a copy: its messages are acknowledged already"
        ) from error
    refuse_newer(f"{objects.uri}/{piece}", rows.schema.metadata)
    return rows.replace_schema_metadata(None)


class LandedBatches:
    """The landings of one run of batches, each by several readers, and which of its batches are over.

    Landings of a batch that is over may be deleted, manifests included. A straggler of that batch would find no
    manifest, create it, and acknowledge messages that nobody will ever ask for. So a fence is written before anything
    is deleted, and a reader that has created a manifest looks for the fence before it acknowledges.
    """

    def __init__(self, objects: ObjectStore, run: str) -> None:
        self._objects = objects
        self._run = run

    def name(self, batch: int, reader: int) -> str:
        """The name that a reader lands under."""
        return f"{self._run}/{batch:0{DIGITS}d}-{reader:04d}"

    def is_over(self, batch: int) -> bool:
        """Whether this batch, or a later one, was ended."""
        return any(number >= batch for number, _ in self._numbered(f"{OVER}-"))

    def end(self, batch: int, keep: int) -> int:
        """Say that all up to this batch are over, and delete what they landed but for the last `keep` of them. Safe to
        repeat, and to be killed at any point: the next end deletes what is left. How many objects it deleted."""
        with contextlib.suppress(ObjectExists):  # ended before, and perhaps not to the end
            self._objects.create(f"{FOLDER}{self._run}/{OVER}-{batch:0{DIGITS}d}", json.dumps(marks()).encode())
        done = [name for number, name in self._numbered() if number <= batch - keep]
        for name in done:
            self._objects.delete(name)
        for _, name in sorted(self._numbered(f"{OVER}-"))[:-FENCES_KEPT]:
            self._objects.delete(name)
        return len(done)

    def _numbered(self, before: str = "") -> Iterator[tuple[int, str]]:
        """The run's objects with a batch's number after `before` (nothing: what was landed), each with that number."""
        prefix = f"{FOLDER}{self._run}/{before}"
        for name in self._objects.names(prefix):
            if number := NUMBERED.match(name, len(prefix)):
                yield int(number[0]), name
