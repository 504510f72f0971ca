"""`tidemark watermark` on logs in a folder: for people, for scripts, and as a gate that waits, also until a window is
computed."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_explain import Log
from tests.clock import ManualClock
from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.test_reading import compute
from tests.watermark.builders import START, at
from tidemark.pipeline.cli.app import run_command
from tidemark.pipeline.cli.look import watermark
from tidemark.pipeline.clock import iso
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.windows import Windowing


class Shell:
    """A folder with settings and a log, and the command, run by a clock at second 110."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.clock, self._capsys = folder, ManualClock(at(110)), capsys
        (folder / "tidemark.toml").write_text(f'[lake]\nuri = "file:{folder}/lake"\n[windows]\nlength = "1m"\n')
        monkeypatch.setenv("TIDEMARK_CONFIG", str(folder / "tidemark.toml"))
        monkeypatch.setattr(watermark, "SystemClock", lambda: self.clock)

    def run(self, *arguments: str, command: str = "watermark") -> tuple[int, str, str]:
        """Exit code, output, and errors."""
        code = run_command([command, *arguments])
        said = self._capsys.readouterr()
        return code, said.out, " ".join(said.err.replace("│", " ").split())

    def facts(self, *arguments: str, command: str = "watermark") -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--json", command=command)
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.fixture
def log(tmp_path: Path, shell: Shell) -> Log:
    """Ticks at seconds 20 to 100; the watermark is pinned at 49.25."""
    found = Log(tmp_path)
    for second in range(20, 101, 10):
        found.tick(second)
    return found


def test_people_read_where_it_stands_and_why_in_two_lines(shell: Shell, log: Log) -> None:
    code, out, _ = shell.run()
    first, second = out.splitlines()
    decision = log.log.catch_up().decision
    assert (code, first) == (0, decision.sentence() if decision else "")
    assert (
        second == f"decided 10s ago, {iso(at(100))}; newest closed window 2026-11-21T05-19Z; file:{shell.folder}/lake"
    )


def test_scripts_read_the_decision_with_the_evidence_that_explain_has(shell: Shell, log: Log) -> None:
    found, explained = shell.facts(), shell.facts(command="explain")
    assert list(found) == [
        *("watermark", "decided_at", "reason", "sentence", "evidence", "newest_closed_window", "lake")
    ]
    assert (found["watermark"], found["decided_at"]) == (iso(at(49.25)), iso(at(100)))
    assert (found["watermark"], found["reason"]) == (explained["watermark"], explained["reason"])
    pin = {name: value for name, value in explained["pin"].items() if name != "text"}
    assert found["evidence"] == {"candidate": explained["candidate"], "released_before": None, "pin": pin}
    window = {"window": "2026-11-21T05-19Z", "start": "2026-11-21T05:19:00Z", "end": "2026-11-21T05:20:00Z"}
    assert (found["newest_closed_window"], found["lake"]) == (window, f"file:{shell.folder}/lake")


def test_a_time_or_the_end_of_a_window_that_is_reached_ends_the_wait_at_once(shell: Shell, log: Log) -> None:
    for time in ("2026-11-21T05:20:49.25Z", "2026-11-21T05:20Z", "2026-11-21T06:20:49+01:00", "2026-11-21T05-19Z"):
        assert shell.facts("--wait-for", time) == shell.facts()
    assert shell.clock.now() == at(110)


def test_a_time_that_is_not_reached_is_exit_code_1_with_how_far_it_is_and_why(shell: Shell, log: Log) -> None:
    code, out, err = shell.run("--wait-for", iso(at(60)))
    assert (code, out) == (1, "")
    assert shell.clock.now() == at(110) + timedelta(minutes=10)
    assert f"has not reached {iso(at(60))} within 10m: it is at {iso(at(49.25))}, 11s short. PINNED_BY_BACKLOG" in err
    assert f" ago, at {iso(at(100))})" in err


def test_a_damaged_entry_is_exit_code_1_and_named(shell: Shell, log: Log) -> None:
    (shell.folder / "lake" / entry_name(log.last)).write_bytes(b"damaged")
    for arguments in ((), ("--wait-for", iso(at(0)))):
        code, _, err = shell.run(*arguments)
        assert code == 1
        assert entry_name(log.last) in err


CONFIG = '[windows]\nlength = "1m"\nfirst = "2026-11-21T05:00:00Z"\nlookback = "1m"\n'
TOO_EARLY, EMPTY, HELD, OPEN = (f"2026-11-21T{time}Z" for time in ("04-50", "05-10", "05-15", "05-20"))


@pytest.fixture
def computed_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
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
def test_rows_of_an_uncomputed_window_are_an_error_that_says_why(computed_shell: Shell, window: str, said: str) -> None:
    code, out, err = computed_shell.run("--window", window, "--json", command="diffs")
    assert (code, out, said in err) == (1, "", True)


@pytest.mark.parametrize("window", [EMPTY, "2026-11-21T05-17Z"])
def test_a_window_without_a_heartbeat_has_no_rows_and_that_is_no_error(computed_shell: Shell, window: str) -> None:
    assert computed_shell.run("--window", window, "--json", command="diffs") == (0, "", "")
    said = computed_shell.run("--window", window, command="diffs")[1]
    assert ("there is nothing to compute" in said) == (window == EMPTY)
    lake = computed_shell.folder / "lake"
    shutil.copytree(lake / "heartbeat_diffs", lake / "tables" / "mine")
    for table in ("heartbeat_diffs", "mine"):
        newest = computed_shell.run("--table", table, command="diffs")[1]
        assert "2026-11-21T05-17Z, the newest window, has no rows; nor has any other window; 0 of 0 rows" in newest
        assert "--json has every column" in newest
    assert computed_shell.facts("--wait-for", window, "--computed", "--timeout", "0s")["watermark"]


def test_a_window_whose_heartbeats_were_removed_is_an_error(computed_shell: Shell) -> None:
    windowing = Windowing(timedelta(minutes=1), START)
    lake_in(computed_shell.folder).kept_windows(windowing).raise_to(windowing.named("2026-11-21T05-12Z"))
    for arguments in (("diffs", "--window", EMPTY), ("watermark", "--wait-for", EMPTY, "--computed")):
        code, _, err = computed_shell.run(*arguments[1:], command=arguments[0])
        assert (code, "housekeeping has deleted its rows" in err) == (1, True)
    assert computed_shell.clock.now() == at(110), "nothing is waited for"


def test_waiting_for_rows_ends_when_a_run_commits_them(computed_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = computed_shell.run("--wait-for", HELD, "--computed", "--timeout", "1m")
    assert (code, out) == (1, "")
    assert f"window {HELD} is closed, but was not computed within 1m" in err
    lake, looks = lake_in(computed_shell.folder), list[float]()

    def commit(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            compute(lake, HELD, [("a", -290.0, None)])

    monkeypatch.setattr(computed_shell.clock, "sleep", commit)
    assert computed_shell.facts("--wait-for", HELD, "--computed")["stage"] == "computed"
    assert looks == [5, 5]
    assert json.loads(computed_shell.run("--window", HELD, "--json", command="diffs")[1])["stream_id"] == "a"


def test_waiting_for_rows_first_waits_for_the_watermark(computed_shell: Shell) -> None:
    code, _, err = computed_shell.run("--wait-for", OPEN, "--computed")
    assert (code, "has not reached 2026-11-21T05:21:00Z within 10m" in err) == (1, True)
    assert computed_shell.clock.now() == at(710)


WITHOUT_Z = "2026-11-21T05-19"


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("watermark", ["--computed"], "it only works with --wait-for"),
        ("watermark", ["--wait-for", "2026-11-21T05:15:00Z", "--computed"], "needs a window's key"),
        ("watermark", ["--wait-for", WITHOUT_Z], "write 2026-11-21T05-19Z for the window"),
        ("diffs", ["--window", WITHOUT_Z], "is ambiguous: write"),
        ("streams", ["--window", WITHOUT_Z], "is ambiguous: write"),
        ("repair", ["--recompute", "--to", OPEN, "--from", WITHOUT_Z], "is ambiguous: write"),
        ("repair", ["--recompute", "--to", OPEN, "--from", "2025-11-21T05-20Z"], "is before windows.first"),
        ("repair", ["--from", WITHOUT_Z], "is ambiguous: write"),
        ("explain", ["--at", WITHOUT_Z], "is ambiguous: write"),
    ],
)
def test_what_names_no_window_is_refused(computed_shell: Shell, command: str, arguments: list[str], said: str) -> None:
    code, _, err = computed_shell.run(*arguments, command=command)
    assert (code, said in err) == (2, True)
