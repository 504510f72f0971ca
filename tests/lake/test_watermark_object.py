"""The object that other systems read: what it says, when it is written, and that it never goes back."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import at
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import ObjectMissing, ObjectReplaced
from tidemark.pipeline.lake.log.notes import NAME, WRITTEN_AGAIN_AFTER, WatermarkObject
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState
from tidemark.pipeline.windows import Windowing

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
        found: dict[str, Any] = json.loads(self.content)
        return found

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
    assert told.decision is not None
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
    assert "but the log ends with entry 3; delete the object" in (told.tell(state(3, 0, 10 + MINUTE)) or "")


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
