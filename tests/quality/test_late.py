"""Late heartbeats, by window and by stream: each once, and not where any copy landed in time."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import START, at, bounded, seconds
from tidemark.pipeline.quality.landings import Late, LateHeartbeats
from tidemark.pipeline.windows import Windowing

WINDOWING = Windowing(length=seconds(60), first=START)


def test_late_heartbeats_are_counted_once_in_their_window_and_stream_and_copies_apart(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake.heartbeats(), WINDOWING)
    assert late.since(START) == Late(since=START)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 10), Beat("b", 70, publisher_id="own", message_id="m1")]))
    assert late.since(START) == Late(since=START, rows=2)
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


def test_hours_before_the_one_asked_for_do_not_count_and_compaction_changes_nothing(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = LateHeartbeats(lake.heartbeats(), WINDOWING)
    for event in (10, 20, 3600):
        append_beats(lake.heartbeats(), columns_of([Beat("a", event, late=True)]))
    assert (late.since(START).total, late.since(at(3599)).total) == (3, 1)
    table = lake.heartbeats().pinned()
    assert table is not None
    table.optimize.compact()
    assert late.since(START).total == 3


LANDED = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from((10, 20, 90)), st.booleans()), min_size=1, max_size=4
)


@settings(bounded, max_examples=12)
@given(steps=st.lists(st.one_of(LANDED, st.just("compact")), max_size=8))
def test_kept_up_step_by_step_it_counts_what_is_counted_at_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    lake = lake_in(tmp_path_factory.mktemp("late"))
    late = LateHeartbeats(lake.heartbeats(), WINDOWING)
    landed: list[tuple[str, int, bool]] = []
    for step in steps:
        table = lake.heartbeats().pinned() if step == "compact" else None
        if table is not None:
            table.optimize.compact()
        elif step != "compact":
            landed += step
            append_beats(
                lake.heartbeats(), columns_of([Beat(who, event, late=is_late) for who, event, is_late in step])
            )
        found = late.since(START)
        assert found == LateHeartbeats(lake.heartbeats(), WINDOWING).since(START)
        in_time = {(who, event) for who, event, is_late in landed if not is_late}
        assert found.total == len({(who, event) for who, event, is_late in landed if is_late} - in_time)
        assert found.total + found.copies == sum(is_late for *_, is_late in landed)
