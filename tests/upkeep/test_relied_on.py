"""How far the watermark is known to have come by what is computed, also where manifests of runs are gone."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.clock import ManualClock
from pipeline.lake.layout import Lake
from pipeline.lake.log.tracking_log import entry_name
from pipeline.lake.log.witness import ENTRIES_BETWEEN
from pipeline.lake.log.witness import FOLDER as NOTES
from pipeline.lake.tables.diffs import MANIFESTS, DiffRun
from pipeline.settings import LakeSettings
from pipeline.upkeep import log_check
from pipeline.upkeep.log_check import ReliedOn, relied_on
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import Beginning, DecisionRecord, Lost
from tests.quality.staleness_history import WINDOWING, WINDOWS
from tests.watermark.builders import START, at, seconds

CLOCK = ManualClock(at(600))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeSettings(uri=f"file:{tmp_path}/lake"), {}, CLOCK)


def compute(lake: Lake, name: str, window: int, watermark: float) -> None:
    """A run over one window that relied on a watermark; its files are older than those of any later run."""
    diffs, key = lake.diffs(), WINDOWS[window].key
    run = DiffRun(name, [key], heartbeats_version=0, watermark=at(watermark), started_at=at(600))
    fence = diffs.fence([key])
    diffs.leave_manifest(run)
    CLOCK.advance(seconds(1))
    diffs.replace(run, fence)


def lose(folder: Path, run: str) -> str:
    """Remove a run's manifest; its name."""
    name = f"{MANIFESTS}{run}.json"
    (folder / "lake" / name).unlink()
    return name


def test_where_nothing_is_computed_nothing_is_known(lake: Lake) -> None:
    assert relied_on(lake.diffs(), WINDOWING) == ReliedOn()


def test_the_run_of_the_newest_window_or_the_newest_run_tells(lake: Lake) -> None:
    compute(lake, "a", 5, watermark=400.5)
    compute(lake, "b", 2, watermark=300)
    assert relied_on(lake.diffs(), WINDOWING) == ReliedOn(at(400.5))
    compute(lake, "c", 1, watermark=500)
    assert relied_on(lake.diffs(), WINDOWING) == ReliedOn(at(500))


def test_where_its_manifest_is_gone_the_next_older_one_tells_and_what_is_gone_is_named(
    lake: Lake, tmp_path: Path
) -> None:
    compute(lake, "a", 1, watermark=130)
    compute(lake, "b", 2, watermark=450)
    compute(lake, "c", 3, watermark=470)
    name = lose(tmp_path, "c")
    relied = relied_on(lake.diffs(), WINDOWING)
    assert relied.watermark == at(450)
    (unread,) = relied.unread
    assert name in unread


def test_a_computed_window_had_been_passed_whatever_manifests_are_left(lake: Lake, tmp_path: Path) -> None:
    compute(lake, "a", 1, watermark=130)
    compute(lake, "b", 2, watermark=190)
    for run in "ab":
        lose(tmp_path, run)
    relied = relied_on(lake.diffs(), WINDOWING)
    assert (relied.watermark, len(relied.unread)) == (at(180), 2)
    assert relied_on(lake.diffs(), replace(WINDOWING, length=5 * WINDOWING.length)).watermark is None


def test_where_all_manifests_are_gone_no_more_are_asked_for_than_a_bound(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        compute(lake, f"run{number}", number, watermark=500)
        lose(tmp_path, f"run{number}")
    monkeypatch.setattr(log_check, "MANIFESTS_TRIED", 3)
    assert len(relied_on(lake.diffs(), WINDOWING).unread) == 3


def decided(lake: Lake, watermark: float) -> None:
    decision = Decision(at=at(watermark), watermark=at(watermark), reason=Reason.ADVANCED)
    state = lake.tracking_log().append(DecisionRecord(decision, None, None, Policy()))
    lake.log_witness().note(state)


@pytest.mark.parametrize("has_note", [True, False])
def test_the_command_forgets_an_entry_also_where_the_newest_manifest_is_gone_and_says_what_it_did_not_have(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_note: bool
) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text('[lake]\nuri = "file:lake"\n[windows]\nlength = "1m"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(config))
    lake.tracking_log().begin(Beginning(START))
    for number in range(ENTRIES_BETWEEN + 1):
        decided(lake, 190 + number)
    compute(lake, "only", 2, watermark=199)
    name = lose(tmp_path, "only")
    if not has_note:
        for note in (tmp_path / "lake" / NOTES).iterdir():
            note.unlink()
    newest = lake.tracking_log().numbers()[-1]
    (tmp_path / "lake" / entry_name(newest)).unlink()
    said = CliRunner().invoke(app, ["forget", str(newest)])
    assert said.exit_code == 0, said.output
    floor = at(200) if has_note else at(180)
    assert lake.tracking_log().entry(newest) == Lost("an operator called it lost", floor)
    assert f"it does not go back below {floor:%Y-%m-%dT%H:%M:%SZ}" in said.stdout
    assert name in said.stderr
