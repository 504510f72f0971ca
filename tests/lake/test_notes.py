"""Notes of every kind: one codec, one set of errors, and the objects that earlier programs of this format wrote."""

import io
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.pipeline.errors import DamagedNote, NewerFormat
from tidemark.pipeline.lake.landings import MANIFEST
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, NoteKind, Notes, ParquetKind
from tidemark.pipeline.version import FORMAT

NEWER = {"tidemark.version": "9.0.0", "tidemark.format": str(FORMAT + 1)}


@dataclass(frozen=True, slots=True)
class Said:
    number: int
    exact: datetime
    shown: Moment | None = None


FACTS = JsonKind("facts/", "put it back", r"[a-z]+", holds=Said)
ROWS = ParquetKind("rows/", "put it back", columns=("id",))
TABLE = pa.table({"id": ["a", "b"]})


def parquet(table: pa.Table, mark: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(mark), sink)
    return sink.getvalue()


def test_notes_are_listed_in_order_and_other_objects_are_none(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    notes = Notes(objects, FACTS)
    for name in ("facts/b.json", "facts/a.json", "facts/ab.json", "facts/1.json", "facts/c.parquet", "facts/d/e.json"):
        objects.create(name, b"{}")
    assert (notes.listed(), notes.listed("a")) == (["a", "ab", "b"], ["a", "ab"])
    notes.keep_newest(1)
    assert notes.listed() == ["b"]
    notes.delete("b", "never written")
    assert notes.listed() == []
    assert len(list(objects.names("facts/"))) == 3


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        *((FACTS, written) for written in (b"", b"\xff", b"[]", b"{}", b"null", b'{"number": 1e999, "exact": 0}')),
        (FACTS, b'{"number": 1, "exact": "2026-11-21T05:20:00", "shown": "2026-11-21T05:20:00"}'),
        (MANIFEST, b'{"pieces": [], "oldest_publish_time_us": {}}'),
        (ROWS, b"PAR1"),
        (ROWS, b""),
        (ROWS, parquet(TABLE, {})[:-10]),
        (ROWS, parquet(TABLE.rename_columns(["other"]), {})),
    ],
)
def test_a_damaged_note_is_named_with_what_to_do(kind: NoteKind[Any], written: bytes, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(kind.name("a"), written)
    notes = Notes(objects, kind)
    with pytest.raises(DamagedNote) as damaged:
        notes.read("a")
    assert str(damaged.value).startswith(f"{notes.place('a')} is damaged (")
    assert str(damaged.value).endswith(f"); {kind.damaged}")
    assert "\n" not in str(damaged.value)
    note, generation = notes.found("a")
    assert (note, generation > 0, list(notes.readable(["a"]))) == (None, True, [])


@pytest.mark.parametrize(
    ("kind", "written"), [(FACTS, json.dumps(NEWER).encode()), (ROWS, parquet(TABLE.rename_columns(["other"]), NEWER))]
)
def test_a_note_of_a_later_format_is_refused_whatever_it_holds(
    kind: NoteKind[Any], written: bytes, tmp_path: Path
) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(kind.name("a"), written)
    notes = Notes(objects, kind)
    for reads in (notes.read, notes.find, notes.found):
        with pytest.raises(NewerFormat, match=rf"was written by tidemark 9.0.0.*{kind.name('a')} is undamaged"):
            reads("a")
    assert list(notes.readable(["a", "gone"])) == []
