"""`tidemark watermark` on logs in a folder: for people, for scripts, and as a gate that waits."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_explain import Log
from tests.clock import ManualClock
from tests.watermark.builders import at
from tidemark.pipeline.cli.app import run_command
from tidemark.pipeline.cli.look import watermark
from tidemark.pipeline.clock import iso
from tidemark.pipeline.lake.log.tracking_log import entry_name


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
        found: dict[str, Any] = json.loads(out)
        return found


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


def test_without_a_decision_that_is_said_plainly(shell: Shell) -> None:
    assert shell.run() == (0, f"no decision has been made in file:{shell.folder}/lake yet\n", "")
    found = shell.facts()
    assert {found[name] for name in ("watermark", "decided_at", "reason", "newest_closed_window")} == {None}
    assert set(found["evidence"].values()) == {None}
    code, _, err = shell.run("--wait-for", iso(at(0)), "--timeout", "0s")
    assert (code, "there is no watermark yet. no decision has been made in" in err) == (1, True)


def test_a_time_or_the_end_of_a_window_that_is_reached_ends_the_wait_at_once(shell: Shell, log: Log) -> None:
    for time in ("2026-11-21T05:20:49.25Z", "2026-11-21T05:20Z", "2026-11-21T06:20:49+01:00", "2026-11-21T05-19Z"):
        assert shell.facts("--wait-for", time) == shell.facts()
    assert shell.clock.now() == at(110)


def test_what_is_nearly_a_windows_key_is_exit_code_2(shell: Shell, log: Log) -> None:
    for key in ("2026-11-21 05-19Z", "2026-11-21T05-60Z", "2026-11-21T5-19Z", "9999-12-31T23-59Z"):
        code, _, err = shell.run("--wait-for", key)
        assert (code, key in err) == (2, True)


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
