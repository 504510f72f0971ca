"""Which windows hold heartbeats and which are computed: by new commits alone, and the same as by all of the tables."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lake.builders import Beat
from tests.quality.staleness_history import LOOKBACK, WINDOWING, WINDOWS, History, new_history
from tests.watermark.builders import START, bounded
from tidemark.pipeline.lake.tables import window_index
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.windows import Spans

FIRST = WINDOWING.number_of(START)


def index_of(history: History) -> WindowIndex:
    return history.lake.window_index(WINDOWING, LOOKBACK)


def numbers(spans: Spans) -> list[int]:
    """The windows from the start on, by their place."""
    return sorted(number - FIRST for stretch in spans.within(range(FIRST, FIRST + 10_000)) for number in stretch)


def same(one: WindowIndex, other: WindowIndex) -> None:
    for name in ("held", "reached", "computed"):
        assert numbers(getattr(one, name)) == numbers(getattr(other, name)), name


@pytest.mark.parametrize("loses", ["windows", "commits", "all"])
def test_what_commits_do_not_tell_is_taken_from_the_list_of_files(
    tmp_path: Path, loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", number * 60.0) for number in range(10)])
    history.compute(0, 9)
    index = index_of(history).update()
    table = history.lake.diffs().table.current()
    assert table is not None
    if loses == "windows":
        table.delete(f"window < '{WINDOWS[4].key}'")
    elif loses == "commits":
        monkeypatch.setattr(window_index, "COMMITS_AT_ONCE", 0)
        history.land([Beat("a", 700)])
    else:
        (tmp_path / "lake" / "heartbeat_diffs").rename(tmp_path / "gone")
    same(index.update(), index_of(history).update())
    assert len(index.computed) == {"windows": 6, "commits": 10, "all": 0}[loses]


BEATS = st.lists(st.floats(0, 599).map(lambda second: round(second, 3)), min_size=1, max_size=4)
STEPS = st.lists(st.one_of(BEATS, st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)), max_size=8)


@settings(bounded, max_examples=10)
@given(steps=STEPS)
def test_kept_up_step_by_step_it_is_as_if_read_at_once(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    history = new_history(tmp_path_factory.mktemp("index"))
    index = index_of(history)
    for step in steps:
        if isinstance(step[0], float):
            history.land([Beat("a", second) for second in step])
        else:
            history.compute(*step)
        same(index.update(), index_of(history).update())
    held = {int(second // 60) for step in steps if isinstance(step[0], float) for second in step}
    assert held <= set(numbers(index.held)), "no window with a heartbeat is left out"
