"""Which windows hold heartbeats and which are computed: by new commits alone, and the same as by all of the tables."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lake.builders import Beat
from tests.quality.staleness_history import LENGTH, LOOKBACK, WINDOWING, WINDOWS, History, new_history
from tests.watermark.builders import START, at, bounded, seconds
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS
from tidemark.pipeline.lake.tables import window_index
from tidemark.pipeline.lake.tables.delta_log import Commit
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.spans import Spans
from tidemark.pipeline.windows import DAY, Windowing

FIRST = WINDOWING.number_of(START)


def index_of(history: History) -> WindowIndex:
    return history.lake.window_index(WINDOWING, LOOKBACK)


def numbers(spans: Spans) -> list[int]:
    """The windows from the start on, by their place."""
    return sorted(number - FIRST for stretch in spans.within(range(FIRST, FIRST + 10_000)) for number in stretch)


def same(one: WindowIndex, other: WindowIndex) -> None:
    for name in ("held", "reached", "computed"):
        assert numbers(getattr(one, name)) == numbers(getattr(other, name)), name


def test_an_empty_lake_has_no_windows(tmp_path: Path) -> None:
    index = index_of(new_history(tmp_path)).update()
    assert (index.held.least, len(index.computed), list(index.due(range(FIRST, FIRST + 10)))) == (None, 0, [])


def test_windows_hold_what_the_files_statistics_say_and_are_reached_through_the_lookback(tmp_path: Path) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", 10), Beat("a", 130)])
    history.land([Beat("a", 400)])
    history.compute(2, 3)
    index = index_of(history).update()
    assert numbers(index.held) == [0, 1, 2, 6]
    assert numbers(index.reached) == [0, 1, 2, 3, 6, 7, 8]
    assert numbers(index.computed) == [2, 3]


class CountingCommits(WindowIndex):
    """Counts the commits that it folds to keep up."""

    folded = 0

    def _hold(self, commit: Commit) -> bool:
        self.folded += 1
        return super()._hold(commit)

    def _compute(self, commit: Commit) -> bool:
        self.folded += 1
        return super()._compute(commit)


def test_it_keeps_up_by_reading_each_new_commit_once(tmp_path: Path) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", 10)])
    tables = (history.lake.table(name) for name in (HEARTBEATS, HEARTBEAT_DIFFS))
    index = CountingCommits(*tables, WINDOWING, LOOKBACK)
    index.update()
    assert index.folded == 0, "what is there at first is taken from the list of files"
    history.land([Beat("a", 200)])
    history.land([Beat("a", 500)])
    history.compute(0, 1)
    history.compute(3, 3)
    same(index.update(), index_of(history).update())
    assert index.folded == 2, "the table of diffs is new, and is taken from its files"
    history.compute(8, 8)
    for _ in range(2):
        index.update()
        assert index.folded == 3


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


def test_a_commit_that_adds_no_file_of_diffs_changes_nothing(tmp_path: Path) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", 10)])
    history.compute(3, 3)
    index = index_of(history).update()
    table = history.lake.diffs().table.current()
    assert table is not None
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    same(index.update(), index_of(history).update())
    assert len(index.computed) == 1


def test_compaction_makes_no_window_hold_anything(tmp_path: Path) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", 10)])
    index = index_of(history).update()
    history.land([Beat("a", 500)])
    history.compact()
    assert numbers(index.update().held) == [0, 8]


@pytest.mark.parametrize("length", [30, 300])
def test_windows_of_another_length_are_refused(tmp_path: Path, length: float) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", 10)])
    history.compute(0, 7)
    index = history.lake.window_index(Windowing(seconds(length), START), LOOKBACK)
    with pytest.raises(InvalidSettings, match=r"heartbeat_diffs has windows of 1m, .* put the length back"):
        index.update()


BEATS = st.lists(st.floats(0, 599).map(lambda second: round(second, 3)), min_size=1, max_size=4)
STEPS = st.lists(st.one_of(BEATS, st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)), max_size=8)


@settings(bounded, max_examples=20)
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


# ------------------------------------------------------------------------------------------- what a choice costs


class Counting(Spans):
    """Counts the stretches that are looked at."""

    looked_at = 0

    def within(self, bounds: range) -> Any:
        for stretch in super().within(bounds):
            Counting.looked_at += 1
            yield stretch


def a_year_of_gaps(gaps: int) -> tuple[WindowIndex, range]:
    """An index of a year of one-minute windows, in which every window without a gap before it is computed."""
    windowing = Windowing(timedelta(minutes=1), START)
    closed = range(windowing.number_of(START), windowing.number_of(START + 365 * DAY))
    starts = np.linspace(closed.start, closed.stop - 60, gaps, dtype=np.int64)
    index = WindowIndex(SimpleNamespace(), SimpleNamespace(), windowing, timedelta(minutes=10))  # type: ignore[arg-type]
    index.held, index.reached = Counting.of(starts, starts + 1), Counting.of(starts, starts + 11)
    index.computed = Counting()
    return index, closed


def test_choosing_among_ten_thousand_gaps_of_a_year_looks_at_what_it_chooses() -> None:
    index, closed = a_year_of_gaps(10_000)
    Counting.looked_at = 0
    chosen: list[range] = []
    for stretch in index.due(closed):
        chosen.append(stretch)
        if sum(map(len, chosen)) >= 288 + DAY // timedelta(minutes=1):
            break
    assert Counting.looked_at < 300
    assert chosen[0].stop == closed.stop


def test_a_year_without_anything_due_costs_its_gaps_and_not_its_windows() -> None:
    index, closed = a_year_of_gaps(10_000)
    index.computed = Counting(closed)
    Counting.looked_at = 0
    assert list(index.due(closed)) == []
    assert Counting.looked_at < 25_000


def test_a_message_every_26_hours_asks_for_its_own_windows(tmp_path: Path) -> None:
    history = new_history(tmp_path)
    apart = 26 * 3600.0
    history.land([Beat("a", -number * apart) for number in range(300)])
    windowing = Windowing(LENGTH, START - 400 * DAY)
    closed = range(windowing.number_of(windowing.first), windowing.number_of(at(LENGTH.total_seconds())))
    due = list(history.lake.window_index(windowing, LOOKBACK).update().due(closed))
    older = [stretch for stretch in due if stretch.stop <= closed.stop - DAY // LENGTH]
    assert [len(stretch) for stretch in older] == [2] * 299
    assert sum(map(len, due)) - sum(map(len, older)) <= DAY // LENGTH
