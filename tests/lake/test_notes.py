"""Notes of every kind: one codec, one set of errors, and the objects that earlier programs of this format wrote; and
the object that other systems read."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import at
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import DamagedNote, NewerFormat, ObjectMissing, ObjectReplaced
from tidemark.pipeline.lake.landings import MANIFEST
from tidemark.pipeline.lake.log.notes import NAME, WRITTEN_AGAIN_AFTER, WatermarkObject
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, NoteKind, Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import FORMAT, marks
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState
from tidemark.pipeline.windows import Windowing

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
def test_a_note_of_a_later_format_is_always_refused(kind: NoteKind[Any], written: bytes, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(kind.name("a"), written)
    notes = Notes(objects, kind)
    for reads in (notes.read, notes.find, notes.found):
        with pytest.raises(NewerFormat, match=rf"was written by tidemark 9.0.0.*{kind.name('a')} is undamaged"):
            reads("a")
    assert list(notes.readable(["a", "gone"])) == []


TICK = 10
WINDOWING = Windowing(timedelta(minutes=5), at(0))
MINUTE = WRITTEN_AGAIN_AFTER.total_seconds()


def state(entry: int, watermark: float | None, seconds: float, reason: Reason = Reason.ADVANCED) -> WatermarkState:
    """The fold up to an entry, whose newest decision was made at this second."""
    decision = Decision(at(seconds), None if watermark is None else at(watermark), reason)
    return WatermarkState(number=entry, record=DecisionRecord(decision, None, None, Policy()))


class Memory:
    """One object in memory. `calls` are counted; `before_write` is what others do between a read and a write."""

    uri = "memory:"

    def __init__(self) -> None:
        self.content, self.generation, self.calls = b"", 0, list[str]()
        self.before_write: Callable[[], object] = lambda: None
        self.fails: Exception | None = None

    def said(self) -> dict[str, Any]:
        return json.loads(self.content)

    def read_generation(self, name: str) -> tuple[bytes, int]:
        self.calls.append("read")
        if not self.generation:
            raise ObjectMissing(name)
        return self.content, self.generation

    def replace(self, name: str, content: bytes, generation: int) -> int:
        self.calls.append("write")
        before, self.before_write = self.before_write, lambda: None
        before()
        if self.fails is not None:
            raise self.fails
        if generation != self.generation:
            raise ObjectReplaced(name)
        self.content, self.generation = content, self.generation + 1
        return self.generation


def writer(memory: Memory) -> WatermarkObject:
    return WatermarkObject(memory, WINDOWING)  # type: ignore[arg-type]


def test_the_object_is_one_line_of_json_with_the_decision_and_the_format_mark(objects: ObjectStore) -> None:
    told = state(7, 30, 40)
    assert WatermarkObject(objects, WINDOWING).tell(told) is None
    content = objects.read(NAME)
    assert json.loads(content) == {
        "watermark": iso(at(30)),
        "decided_at": iso(at(40)),
        "reason": "ADVANCED",
        "sentence": told.decision.sentence(),
        "log_entry": 7,
        "promise": "landed",
        "rejected": 0,
        "window_seconds": 300,
        **marks(),
    }
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")


def test_a_writer_that_was_overtaken_writes_at_its_next_call_and_calls_it_no_problem() -> None:
    memory = Memory()
    first, second = writer(memory), writer(memory)
    first.tell(state(1, 0, 10))
    second.tell(state(2, 10, 20))
    memory.calls.clear()
    assert first.tell(state(3, 20, 30)) is None
    assert (memory.calls, memory.said()["log_entry"]) == (["write"], 2)
    assert first.tell(state(4, 30, 40)) is None
    assert (memory.calls[1:], memory.said()["log_entry"]) == (["read", "write"], 4)


def test_an_object_that_knows_more_than_the_log_is_reported_after_a_minute() -> None:
    memory = Memory()
    writer(memory).tell(state(9, 0, 10))
    told = writer(memory)
    assert told.tell(state(2, 0, 20)) is None
    assert "but the log ends with 3; delete the object, and a tick" in (told.tell(state(3, 0, 10 + MINUTE)) or "")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), st.lists(st.integers(0, 2), max_size=2)))
)
def test_the_object_never_goes_back_however_trackers_meet(turns: list[tuple[int, int, bool, list[int]]]) -> None:
    """A turn: who tells, how far its fold is behind the log's end, whether it begins anew, and who comes between its
    read and its write."""
    memory, seen = Memory(), list[tuple[int, str]]()
    writers = [writer(memory) for _ in range(3)]
    for end, (who, behind, restarts, between) in enumerate(turns):
        if restarts:
            writers[who] = writer(memory)

        def told(entry: int) -> WatermarkState:
            return state(entry, entry, entry * TICK)

        def others(between: list[int] = between, end: int = end) -> None:
            for other in between:
                assert writers[other].tell(told(end)) is None

        memory.before_write = others
        memory.calls.clear()
        assert writers[who].tell(told(max(end - behind, 0))) is None
        if memory.generation:
            seen.append((memory.said()["log_entry"], memory.said()["watermark"]))
    assert seen == sorted(seen)
