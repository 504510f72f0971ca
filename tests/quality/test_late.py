"""Late heartbeats, by window and by stream: each once, and not where any copy landed in time."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import START, at, seconds
from tidemark.pipeline.quality.late import Late, LateHeartbeats
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(length=seconds(60), first=START)


def test_late_heartbeats_are_counted_once_in_their_window_and_stream_and_copies_apart(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake, WINDOWING)
    assert late.since(START) == Late(START)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10), Beat("b", 70, publisher_id="own", message_id="m1")]))
    assert late.since(START) == Late(START, rows=2)
    append_beats(
        lake.heartbeats(),
        columns_of(
            [
                Beat("a", 10, late=True),  # a copy of one that landed in time
                Beat("b", 70, publisher_id="own", message_id="m2", late=True),  # the same, published again
                Beat("b", 75, late=True),
                Beat("c", 80, late=True),
                Beat("c", 130, late=True),
            ]
        ),
    )
    append_beats(lake.heartbeats(), columns_of([Beat("c", 130, late=True)]))
    found = late.since(START)
    assert (found.total, found.copies, found.rows) == (3, 3, 8)
    assert dict(found.by_window) == {"2026-11-21T05-21Z": 2, "2026-11-21T05-22Z": 1}
    assert dict(found.by_stream) == {"c": 2, "b": 1}
    assert found.share == 3 / 8


def test_a_late_heartbeat_of_which_a_copy_lands_in_time_after_all_is_not_late(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake, WINDOWING)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10, late=True)]))
    assert late.since(START).total == 1
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10)]))
    found = late.since(START)
    assert (found.total, found.copies) == (0, 1)


def test_hours_before_the_one_asked_for_do_not_count_and_compaction_changes_nothing(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake, WINDOWING)
    for event in (10, 20, 3600):
        append_beats(lake.heartbeats(), columns_of([Beat("a", event, late=True)]))
    assert (late.since(START).total, late.since(at(3599)).total) == (3, 1)
    table = lake.heartbeats().pinned()
    assert table is not None
    table.optimize.compact()
    assert late.since(START).total == 3


def test_an_hour_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake, WINDOWING)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10, late=True)]))
    found = late.since(START)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the table was read")

    monkeypatch.setattr(DeltaTable, "to_pyarrow_dataset", refuse)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 3700)]))  # another hour, with nothing late
    again = late.since(START)
    assert (again.total, again.rows) == (found.total, 2)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 20, late=True)]))
    with pytest.raises(AssertionError, match="the table was read"):
        late.since(START)
