"""Waiting until a window is computed, and asking for the rows of one that is not."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.test_explain import Log
from tests.cli.test_watermark import Shell
from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.test_reading import compute
from tests.watermark.builders import START, at
from tidemark.pipeline.windows import Windowing

CONFIG = '[windows]\nlength = "1m"\nfirst = "2026-11-21T05:00:00Z"\nlookback = "1m"\n'
TOO_EARLY, EMPTY, HELD, OPEN = (f"2026-11-21T{time}Z" for time in ("04-50", "05-10", "05-15", "05-20"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A lake whose watermark is in the window OPEN; HELD has a heartbeat, and another window is computed."""
    found, log = Shell(tmp_path, monkeypatch, capsys), Log(tmp_path)
    (tmp_path / "tidemark.toml").write_text(f'[lake]\nuri = "file:{tmp_path}/lake"\n{CONFIG}')
    for second in range(20, 101, 10):
        log.tick(second)
    lake = lake_in(tmp_path)
    append_beats(lake.heartbeats(), columns_of([Beat("a", -290.0)]))
    compute(lake, "2026-11-21T05-17Z", [])
    return found


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (TOO_EARLY, "begins before windows.first"),
        (HELD, f"closed but not computed yet; `tidemark watermark --wait-for {HELD} --computed` waits for its rows"),
        (OPEN, f"the watermark has not passed window {OPEN}"),
    ],
)
def test_rows_of_a_window_that_is_not_computed_are_an_error_that_says_why(shell: Shell, window: str, said: str) -> None:
    code, out, err = shell.run("--window", window, "--json", command="diffs")
    assert (code, out, said in err) == (1, "", True)


@pytest.mark.parametrize("window", [EMPTY, "2026-11-21T05-17Z"])
def test_a_window_without_a_heartbeat_has_no_rows_and_that_is_no_error(shell: Shell, window: str) -> None:
    assert shell.run("--window", window, "--json", command="diffs") == (0, "", "")
    said = shell.run("--window", window, command="diffs")[1]
    assert ("there is nothing to compute" in said) == (window == EMPTY)
    assert shell.facts("--wait-for", window, "--computed", "--timeout", "0s")["watermark"]


def test_a_window_whose_heartbeats_were_removed_is_an_error(shell: Shell) -> None:
    windowing = Windowing(timedelta(minutes=1), START)
    lake_in(shell.folder).kept_windows(windowing).raise_to(windowing.named("2026-11-21T05-12Z"))
    for arguments in (("diffs", "--window", EMPTY), ("watermark", "--wait-for", EMPTY, "--computed")):
        code, _, err = shell.run(*arguments[1:], command=arguments[0])
        assert (code, "housekeeping has deleted heartbeats" in err) == (1, True)
    assert shell.clock.now() == at(110), "nothing is waited for"


def test_waiting_for_rows_ends_when_a_run_commits_them(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = shell.run("--wait-for", HELD, "--computed", "--timeout", "1m")
    assert (code, out) == (1, "")
    assert f"window {HELD} is closed, but was not computed within 1m" in err
    lake, looks = lake_in(shell.folder), list[float]()

    def commit(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            compute(lake, HELD, [("a", -290.0, None)])

    monkeypatch.setattr(shell.clock, "sleep", commit)
    assert shell.facts("--wait-for", HELD, "--computed")["stage"] == "computed"
    assert looks == [5, 5]
    assert json.loads(shell.run("--window", HELD, "--json", command="diffs")[1])["stream_id"] == "a"


def test_waiting_for_rows_first_waits_for_the_watermark(shell: Shell) -> None:
    code, _, err = shell.run("--wait-for", OPEN, "--computed")
    assert (code, "has not reached 2026-11-21T05:21:00Z within 10m" in err) == (1, True)
    assert shell.clock.now() == at(710)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--computed"], "it only works with --wait-for"),
        (["--wait-for", "2026-11-21T05:15:00Z", "--computed"], "needs a window's key"),
        (["--wait-for", "2026-11-21T05-19"], "write 2026-11-21T05-19Z for the window"),
    ],
)
def test_what_names_no_window_is_exit_code_2(shell: Shell, arguments: list[str], said: str) -> None:
    code, _, err = shell.run(*arguments)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("diffs", ["--window"]),
        ("streams", ["--window"]),
        ("repair", ["--recompute", "--to", OPEN, "--from"]),
        ("repair", ["--from"]),
        ("explain", ["--at"]),
    ],
)
def test_a_key_without_its_z_is_refused_wherever_a_window_or_a_time_is_named(
    shell: Shell, command: str, arguments: list[str]
) -> None:
    code, _, err = shell.run(*arguments, "2026-11-21T05-19", command=command)
    assert (code, "is ambiguous: write" in err) == (2, True)


def test_where_nothing_lands_nothing_is_computed(shell: Shell) -> None:
    settings = shell.folder / "tidemark.toml"
    settings.write_text(
        settings.read_text() + '[pubsub]\nproject = "project"\nattach = true\nbase_subscription = "theirs"\n'
    )
    code, _, err = shell.run("--wait-for", HELD, "--computed")
    assert (code, "`tidemark watermark --computed` needs landed messages" in err) == (1, True)
