"""Missed heartbeats and stale windows: exact under random landings, computations, compactions and restarts."""

import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.lake.builders import Beat, put, version_of
from tests.pubsub.builders import raising
from tests.quality.staleness_history import WINDOWING, WINDOWS, History, UnderWay, copy_of, found_in, new_history
from tests.watermark.builders import at, bounded
from tidemark.pipeline.lake.tables.streams import streams_in
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.quality import landings as landings_module
from tidemark.pipeline.quality import staleness as staleness_module
from tidemark.pipeline.quality.landings import MissedHeartbeats
from tidemark.pipeline.quality.staleness import CHECKPOINTS

new_beats = st.tuples(st.sampled_from("abc"), st.integers(0, 39).map(lambda half: half * 15.0), st.booleans())
landings = st.lists(st.one_of(new_beats, st.integers(0, 50)), min_size=1, max_size=4)
ranges = st.tuples(st.integers(0, 9), st.integers(0, 2)).map(lambda pair: (pair[0], min(9, sum(pair))))
steps = st.one_of(
    st.tuples(st.just("land"), landings),
    st.tuples(st.just("land"), landings),
    st.tuples(st.just("compute"), ranges),
    st.tuples(st.just("start"), ranges),
    st.tuples(st.just("finish"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["compact", "check", "step", "restart", "vacuum"]), st.none()),
)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return new_history(tmp_path)


def beats_of(history: History, landing: list[tuple[str, float, bool] | int]) -> list[Beat]:
    """New heartbeats, some with a publisher's id; a number is a copy of one that has landed."""
    beats: list[Beat] = []
    for one in landing:
        number = len(history.landed) + len(beats)
        if isinstance(one, tuple):
            stream, event, has_id = one
            publisher_id = f"own{number}" if has_id else None
            beats.append(Beat(stream, event, message_id=f"m{number:03d}", publisher_id=publisher_id))
        elif history.landed:
            beats.append(copy_of(history.landed[one % len(history.landed)][1], number))
    return beats


def land_or_compute(history: History, under_way: list[UnderWay], step: str, argument: object) -> None:
    """A step that changes what the lake holds; `under_way` are the runs that have been started. Others do nothing."""
    match step:
        case "land":
            history.land(beats_of(history, argument))  # type: ignore[arg-type]
        case "compute":
            history.compute(*argument)  # type: ignore[misc]
        case "start":
            under_way.append(history.start(*argument))  # type: ignore[misc]
        case "finish" if under_way:
            history.finish(under_way.pop(argument % len(under_way)))  # type: ignore[operator]


BOUNDS = (
    *((staleness_module, name) for name in ("COMMITS_AT_ONCE", "MANIFESTS_AT_ONCE", "FILES_AT_ONCE")),
    (landings_module, "HOURS_AT_ONCE"),
)
"""With a bound of one, a step of a check is as short as it can be."""

LATER = [("land", [("a", 0.0, False)]), ("compute", (0, 1)), ("land", [("a", 0.0, False)])]


@pytest.fixture
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in BOUNDS:
        monkeypatch.setattr(module, name, 1)


@hypothesis.settings(bounded, max_examples=30)
@given(st.lists(steps, max_size=25), st.booleans(), st.booleans())
@example([*LATER, ("vacuum", None)], False, False)
@example([*LATER, ("step", None)], True, True)
def test_missed_and_stale_equal_a_whole_history(steps: list[tuple[str, object]], is_short: bool, is_cut: bool) -> None:
    """At the end of a history that `is_cut`, what compaction replaced is gone before it was checked."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module, name in BOUNDS if is_short else ():
            patch.setattr(module, name, 1)
        history = new_history(Path(folder))
        staleness, under_way = history.staleness(), list[UnderWay]()
        for step, argument in steps:
            match step:
                case "step":
                    staleness.step()
                case "compact":
                    history.compact()
                case "restart":
                    staleness = history.after_restart(staleness)
                case "vacuum" if not under_way:  # once all is checked, what compaction replaced may go
                    staleness.check()
                    history.compact()
                    history.vacuum()
                case "check":
                    assert found_in(staleness.check()) == history.truth()
                case _:
                    land_or_compute(history, under_way, step, argument)
        if is_cut:
            history.compact()
            history.vacuum()
        found, anew, truth = found_in(staleness.check()), found_in(history.staleness().check()), history.truth()
        assert is_cut or found == truth
        for each in (found, anew):
            assert (each.by_window, each.by_stream) == (truth.by_window, truth.by_stream)
            assert each.stale.keys() >= truth.stale.keys()


def test_a_missed_heartbeat_whose_window_is_taken_out_is_in_no_recomputed_window(history: History) -> None:
    history.land([Beat("a", 10.0, "m1")])
    history.compute(0, 1)
    staleness = history.staleness()
    staleness.check()
    history.land([Beat("a", 12.0, "m2"), Beat("a", 70.0, "m3")])
    assert staleness.check().total == 2
    history.lake.diffs().forget([WINDOWS[0].key])
    history.compute(1, 1)
    found = staleness.check()
    assert (found.total, found.mended) == (0, 1)


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_long_check_says_how_much_is_left_and_goes_on_where_it_was(history: History, is_cut: bool) -> None:
    for number in range(6):
        history.land([Beat("a", number * 60.0, message_id=f"m{number}"), Beat("b", number * 3600.0, message_id="far")])
        history.compute(number, number)
    history.land([Beat("b", 45, message_id="late")])
    if is_cut:
        history.compact()
        history.vacuum()
    staleness, said = history.staleness(), list[MissedHeartbeats]()
    while not said or said[-1].left:
        said.append(staleness.step())
    assert [missed.total for missed in said] == [0] * (len(said) - 1) + [1]
    assert len(said) > 10
    assert [missed.left for missed in said[:5]] == [5, 4, 3, 2, 1]  # manifests, then commits or hours
    assert found_in(said[-1]).stale.keys() >= history.truth().stale.keys()
    assert history.staleness().check() == said[-1]
    assert staleness.step() is said[-1]


def test_while_nothing_lands_late_no_file_of_rows_is_opened(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    history.land([Beat("a", 10)])
    history.compute(0, 0)
    staleness = history.staleness()
    monkeypatch.setattr(LakeTable, "file_rows", raising(AssertionError("a file was opened")))
    for number in range(3):
        history.land([Beat("a", 100 + number)])
        assert staleness.check().total == 0
    history.land([Beat("a", 20)])
    with pytest.raises(AssertionError, match="a file was opened"):
        staleness.check()


def test_a_check_ends_in_short_steps_and_knows_current_runs(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.pipeline.quality.staleness.MANIFESTS_AT_ONCE", 1)
    staleness, steps = history.staleness(), iter(range(20))
    for number in range(4):
        history.land([Beat("a", 10 + number)])
        for window in range(2):
            history.compute(window, window)
        assert staleness.check(lambda: next(steps) < 19).left == 0
    assert staleness._version_of_run.keys() == set(history.lake.diffs().runs().values())


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_an_hour_with_a_damaged_or_missing_file_is_unknown_until_its_repair(history: History, *, is_gone: bool) -> None:
    history.land([Beat("a", 10), Beat("a", 2410)])
    history.compute(0, 2)
    other = compute_at(history, 2400)
    staleness = history.staleness()
    staleness.check()
    history.land([Beat("b", 20)])
    history.land([Beat("c", 2420)])
    file = newest_file(history, "2026-11-21T05Z")
    content = file.read_bytes()
    file.write_bytes(content[:-40])
    if is_gone:
        file.unlink()
    for check in (staleness, history.after_restart(staleness)):
        missed = check.check()
        assert (missed.by_window[other] >= 1, missed.left) == (True, 0)
        assert WINDOWS[0].key not in missed.by_window
        assert missed.damaged == {f"event_hour=2026-11-21T05Z/{file.name}": "2026-11-21T05Z"}
    file.write_bytes(content)
    missed = staleness.check()
    assert (missed.by_window[WINDOWS[0].key], missed.damaged) == (1, {})


def compute_at(history: History, second: float) -> str:
    """The key of the window that contains this moment, which a run has computed."""
    window = WINDOWING.containing(at(second))
    put(history.lake.diffs(), f"at-{second}", [window.key], version_of(history.lake.heartbeats()))
    return window.key


def newest_file(history: History, hour: str) -> Path:
    """The file of an event hour that was written last."""
    files = (history.folder / f"lake/heartbeats/event_hour={hour}").glob("*.parquet")
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def test_a_check_s_progress_is_kept_and_read_back_and_a_damaged_file_is_ignored(history: History) -> None:
    history.land([Beat("a", 10)])
    history.compute(0, 0)
    staleness = history.staleness()
    assert history.restored().checkpoint is None
    for event in (20, 30):
        history.land([Beat("a", event)])
        staleness.check()
        staleness.keep()
    assert history.restored().checkpoint == staleness.checkpoint
    (kept,) = (history.folder / "lake" / CHECKPOINTS.prefix).iterdir()  # the earlier one is gone
    assert history.restored().check() == staleness.check()
    kept.chmod(0o644)
    kept.write_bytes(kept.read_bytes()[:40])
    assert history.restored().checkpoint is None


def test_behind_a_damaged_commit_the_tables_are_compared_as_a_whole(history: History) -> None:
    history.land([Beat("a", 10)])
    history.land([Beat("b", 20)])
    history.compute(0, 2)
    history.land([Beat("c", 30)])
    landed = history.lake.heartbeats().in_place()
    landed.create_checkpoint()
    (history.folder / f"lake/heartbeats/_delta_log/{landed.version():020d}.json").write_text('{"commitInfo')
    assert history.staleness().check().by_stream["c"] == 1


def test_a_file_from_which_somebody_deleted_rows_is_read_as_any_other(history: History) -> None:
    """The library's `delete` writes texts as views."""
    history.land([Beat("a", 10), Beat("b", 20)])
    history.compute(0, 2)
    history.land([Beat("c", 30), Beat("secret", 40)])
    history.lake.heartbeats().in_place().delete("stream_id = 'secret'")
    missed = history.staleness().check()
    assert (missed.by_stream["c"], missed.damaged) == (1, {})
    history.lake.diffs().table.current().delete("stream_id = 'b'")
    assert streams_in(history.lake.diffs(), [WINDOWS[0].key]) == {WINDOWS[0].key: 1}


def test_a_window_of_a_version_that_the_table_has_not_reached_any_more_is_stale(history: History) -> None:
    table = history.folder / "lake/heartbeats"
    history.land([Beat("a", 10)])
    shutil.copytree(table, history.folder / "copy")
    history.land([Beat("b", 20)])
    history.compute(0, 0)
    shutil.rmtree(table)
    shutil.copytree(history.folder / "copy", table)
    assert [stale.window for stale in history.restored().check().stale] == [WINDOWS[0]]
