"""Computed windows: however many runs compute one at once, its rows stand once; and which windows hold heartbeats and
which are computed, by new commits alone."""

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.gcs.apart import fresh_lake
from tests.lake.builders import Beat, files_of, lake_in, lake_of, put
from tests.quality.staleness_history import WINDOWING, WINDOWS, History, new_history
from tests.watermark.builders import START, at, bounded
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import LakeError, LakeUnreachable, TableConflict
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables import window_index
from tidemark.pipeline.lake.tables.table import ATTEMPTS, DamagedFile
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.lake.tables.windowed import DiffRun, Fence, WindowedTable
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.windows import Spans

RUNS = 5
ROUNDS = 2
SHARED = "2026-11-21T05-20Z"
WHOLE = 6
"""Rows of a window."""


@pytest.fixture(params=["disk", pytest.param("gcs", marks=pytest.mark.gcs)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return lake_in(tmp_path)
    return lake_of(fresh_lake(request.getfixturevalue("endpoint_apart")))


def compute(diffs: WindowedTable, name: str, windows: Sequence[str], fence: Fence | None = None) -> Mapping[str, int]:
    """One run, with some rows in every window."""
    return put(diffs, name, dict.fromkeys(windows, [{"stream_id": name, "event_time": at(0)}] * WHOLE), fence=fence)


def rows_by_window(lake: Lake) -> dict[str, dict[str, int]]:
    """How many rows of which run stand in each window."""
    table = lake.diffs().table.in_place()
    found: dict[str, dict[str, int]] = {key: {} for key in lake.diffs().computed()}
    for row in table.to_pyarrow_table(columns=["window", "stream_id"]).to_pylist():
        of_window = found[row["window"]]
        of_window[row["stream_id"]] = of_window.get(row["stream_id"], 0) + 1
    return found


def test_a_window_that_many_runs_compute_at_once_stands_once_first_and_again(lake: Lake) -> None:
    windows_of = {f"run{number}": [SHARED, f"2026-11-21T{number:02d}-00Z"] for number in range(RUNS)}
    together = threading.Barrier(RUNS, timeout=60)

    def work(label: str, name: str) -> Mapping[str, int]:
        diffs = lake.diffs()
        fence = diffs.fence(windows_of[name])
        together.wait()  # all have taken their fence before any of them goes on
        return compute(diffs, f"{label}-{name}", windows_of[name], fence)

    for number in range(ROUNDS):  # the first round creates the table, the second replaces what is there
        with ThreadPoolExecutor(RUNS) as threads:
            found = threads.map(work, [f"round{number}"] * RUNS, windows_of)
            outcomes = dict(zip(windows_of, found, strict=True))
        winners = [name for name, outcome in outcomes.items() if SHARED in outcome]
        assert len(winners) == 1
        stands = rows_by_window(lake)
        assert stands.pop(SHARED) == {f"round{number}-{winners[0]}": WHOLE}
        assert stands == {windows_of[name][1]: {f"round{number}-{name}": WHOLE} for name in windows_of}
        for name, outcome in outcomes.items():
            assert outcome == dict.fromkeys(windows_of[name][name not in winners :], WHOLE)


@pytest.mark.parametrize("content", [b"PAR1", None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    lake, windows = lake_in(tmp_path), [SHARED, "2026-11-21T05-25Z"]
    compute(lake.diffs(), "run", windows)
    file = min((tmp_path / "lake/heartbeat_diffs").rglob("*.parquet"))
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"heartbeat_diffs/.*{file.name} is damaged"):
        lake.diffs().read(windows)
    assert len(lake.diffs().read(windows[1:])) == WHOLE


def test_a_field_that_no_run_has_written_yet_is_null(tmp_path: Path) -> None:
    compute(lake_in(tmp_path).diffs(), "run", [SHARED])
    rows = lake_in(tmp_path, {"level": FieldKind.NUMBER}).diffs().read([SHARED])
    assert rows["level"].null_count == len(rows) == WHOLE


def faulty(lake: Lake, *faults: tuple[bool, Exception]) -> WindowedTable:
    """A table whose commits raise these faults, before or after they land."""
    diffs, left = lake.diffs(), list(faults)
    commit = diffs.table.transact

    def transact(*args: Any) -> None:
        landed, fault = left.pop(0) if left else (True, None)
        if landed:
            commit(*args)
        if fault is not None:
            raise fault

    diffs.table.transact = transact  # type: ignore[method-assign]
    return diffs


@pytest.mark.parametrize("fault", [LakeUnreachable("no answer"), TableConflict("another was first")])
def test_a_commit_that_landed_unanswered_is_recognised_and_another_retried(lake: Lake, fault: Exception) -> None:
    for name, landed in (("first", True), ("again", True), ("lost", False)):
        assert compute(faulty(lake, (landed, fault)), name, [SHARED]) == {SHARED: WHOLE}
        assert rows_by_window(lake) == {SHARED: {name: WHOLE}}


def test_a_lake_that_stays_away_is_reported_and_no_reader_sees_a_partial_window(tmp_path: Path) -> None:
    lake, away = lake_in(tmp_path), LakeUnreachable("no answer")
    with pytest.raises(LakeUnreachable):
        compute(faulty(lake, (False, away), (False, away)), "run", [SHARED])
    assert rows_by_window(lake) == {}


def test_a_run_that_slept_until_its_files_may_be_gone_commits_nothing(tmp_path: Path) -> None:
    diffs = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, clock := ManualClock(at(0))).diffs()
    fence, run = diffs.fence([SHARED]), DiffRun("slept", [SHARED], 0, at(0), at(0))
    clock.advance(timedelta(hours=13))
    with pytest.raises(TableConflict, match="may have deleted them as orphans"):
        diffs.replace(run, fence, files_of(diffs, "slept", {SHARED: []}))
    assert not diffs.computed()


def test_a_run_that_loses_every_commit_gives_up_and_says_so(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    diffs = faulty(lake, *[(False, TableConflict("another was first"))] * ATTEMPTS)
    with pytest.raises(TableConflict, match=f"{ATTEMPTS} times in a row.*run it again"):
        compute(diffs, "run", [SHARED])
    assert rows_by_window(lake) == {}


def test_a_field_of_another_kind_than_its_column_is_refused_before_a_run_and_at_its_commit(tmp_path: Path) -> None:
    early, late = (lake_in(tmp_path, {"load": kind}).diffs() for kind in (FieldKind.NUMBER, FieldKind.TEXT))
    fence = late.fence([SHARED])
    compute(early, "early", [SHARED])
    for refused in (lambda: late.fence([SHARED]), lambda: compute(late, "late", [SHARED], fence)):
        with pytest.raises(LakeError, match=r"column load .* double in the lake, but string"):
            refused()


FIRST = WINDOWING.number_of(START)


def index_of(history: History) -> WindowIndex:
    return history.lake.window_index(WINDOWING)


def numbers(spans: Spans) -> list[int]:
    """The windows from the start on, by their place."""
    return sorted(number - FIRST for stretch in spans.within(range(FIRST, FIRST + 10_000)) for number in stretch)


def same(one: WindowIndex, other: WindowIndex) -> None:
    for name in ("held", "reached", "computed"):
        assert numbers(getattr(one, name)) == numbers(getattr(other, name)), name


@pytest.mark.parametrize("loses", ["windows", "a file without rows", "commits", "all"])
def test_files_tell_what_commits_do_not(tmp_path: Path, loses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history = new_history(tmp_path)
    history.land([Beat("a", number * 60.0) for number in range(10)])
    history.compute(0, 9)
    if loses == "a file without rows":
        put(history.lake.diffs(), "empty", [WINDOWS[9].key])
    index = index_of(history).update()
    table = history.lake.diffs().table.current()
    if loses == "a file without rows":
        (path,) = history.lake.diffs().fence([WINDOWS[9].key])[WINDOWS[9].key]
        gone = {"path": path, "dataChange": False, "partitionValues": {"window": WINDOWS[9].key}}
        commit = tmp_path / f"lake/heartbeat_diffs/_delta_log/{table.version() + 1:020d}.json"
        commit.write_text(json.dumps({"remove": gone}))  # another tool's OPTIMIZE
    elif loses == "windows":
        table.delete(f"window < '{WINDOWS[4].key}'")
    elif loses == "commits":
        monkeypatch.setattr(window_index, "COMMITS_AT_ONCE", 0)
        history.land([Beat("a", 700)])
    else:
        (tmp_path / "lake" / "heartbeat_diffs").rename(tmp_path / "gone")
    same(index.update(), index_of(history).update())
    assert len(index.computed) == {"windows": 6, "a file without rows": 9, "commits": 10, "all": 0}[loses]


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
    assert not held or 39 in numbers(index.reached), "a run computes the last window of the hour, and reports the hour"
