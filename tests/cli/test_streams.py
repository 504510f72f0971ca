"""`tidemark streams` on a lake in a folder: windows at a glance, who is silent, and streams of a window by name."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.lake.builders import lake_in, put
from tests.lake.test_streams import KEYS, WINDOWS, beats
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import InvalidSettings, LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import StatusKind


def status(stream: str, kind: StatusKind, **told: Any) -> dict[str, Any]:
    return {"stream_id": stream, "kind": str(kind), **told}


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Three windows: `a` is always there, `b` stops after the first, `c` starts in the last, where `a` misses beats."""
    (tmp_path / "tidemark.toml").write_text(f'[lake]\nuri = "file:{tmp_path}/lake"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
    monkeypatch.setenv("COLUMNS", "200")
    lake = lake_in(tmp_path)
    first, last = WINDOWS[0].start + timedelta(seconds=40), WINDOWS[2].start + timedelta(seconds=10)
    started, missed = {"heartbeats": 2}, {"heartbeats": 2, "gaps": 1, "longest_gap_seconds": 60.0}
    put(lake.diffs(), "run", {KEYS[0]: beats(0, "a", "b"), KEYS[1]: beats(1, "a"), KEYS[2]: beats(2, "a", "c")})
    of_window = {
        KEYS[0]: [status(stream, StatusKind.STARTED, **started) for stream in "ab"],
        KEYS[1]: [status("b", StatusKind.STOPPED, last_event_time=first)],
        KEYS[2]: [
            status(stream, StatusKind.MISSED, missed_heartbeats=n, **missed) for stream, n in (("a", 1), ("c", 3))
        ],
    }
    of_window[KEYS[2]].append(status("c", StatusKind.STARTED, first_event_time=last, **started))
    put(lake.stream_status(), "run", of_window)
    return lake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["streams", *arguments])


def rows(*arguments: str) -> list[dict[str, Any]]:
    """What a script reads: a line for each stream."""
    said = run(*arguments, "--json")
    assert said.exit_code == 0, said.output
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_last_windows_are_shown_at_a_glance(computed: Lake) -> None:
    (facts,) = rows()
    assert (facts["streams"], facts["silent"], facts["silent_since"]) == (3, 1, iso(WINDOWS[2].start))
    assert facts["windows_behind"] == []
    counts = ("window", "streams", "absent", "stopped", "started", "new", "missing", "missed_heartbeats")
    assert [[window[name] for name in counts] for window in facts["windows"]] == [
        [KEYS[0], 2, 0, 0, 2, 2, 0, 0],
        [KEYS[1], 1, 1, 1, 0, 0, 0, 0],
        [KEYS[2], 2, 1, 0, 1, 1, 2, 4],
    ]
    said = run().stdout
    assert said.splitlines()[0] == f"3 streams; 1 silent since {iso(WINDOWS[2].start)} or earlier"
    (line,) = [line for line in said.splitlines() if KEYS[1] in line]
    assert line.split() == [KEYS[1], "1", "1", "1", "50", "%", "0", "0", "0", "0"]
    assert "tidemark repair --recompute" not in said


def test_a_window_without_a_status_is_named_with_what_mends_it(computed: Lake) -> None:
    put(computed.diffs(), "alone", {KEYS[3]: beats(3, "a")}, version=1)
    assert rows()[0]["windows_behind"] == [KEYS[3]]
    assert f"`tidemark repair --recompute --from {KEYS[3]} --to {KEYS[3]}` recomputes them" in " ".join(
        run().stdout.split()
    )
    refused = run("--missing")
    assert isinstance(refused.exception, LakeError)
    assert f"window {KEYS[3]} has no stream_status" in str(refused.exception)


def test_the_silent_are_those_without_a_heartbeat_in_the_newest_window_however_long(computed: Lake) -> None:
    first, last = WINDOWS[0].start + timedelta(seconds=10), WINDOWS[0].start + timedelta(seconds=40)
    assert rows("--silent") == [
        {
            "stream_id": "b",
            "last_event_time": iso(last),
            "silent_for": (WINDOWS[2].end - last).total_seconds(),
            "first_event_time": iso(first),
        }
    ]
    said = run("--silent").stdout
    assert said.splitlines()[-1] == f"1 of 1 silent streams, without a heartbeat from {iso(WINDOWS[2].start)} on"
    put(computed.diffs(), "later", {KEYS[1]: beats(1, "z", after=10.000001), KEYS[3]: []})
    assert [row["stream_id"] for row in rows("--silent")] == ["b", "z", "a", "c"]
    assert [row["last_event_time"][-10:] for row in rows("--silent", "--limit", "2")] == ["T00:00:40Z", "40.000001Z"]
    assert "1 of 4 silent streams, without" in run("--silent", "--limit", "1").stdout


def test_the_streams_that_stopped_started_or_missed_beats_in_a_window_are_named(computed: Lake) -> None:
    assert rows("--silent", "--window", KEYS[1]) == [
        {"stream_id": "b", "last_event_time": iso(WINDOWS[0].start + timedelta(seconds=40))}
    ]
    (started,) = rows("--started")
    assert (started["stream_id"], started["heartbeats"], started["new"]) == ("c", 2, True)
    missing = rows("--missing")
    assert [(row["stream_id"], row["missed_heartbeats"]) for row in missing] == [("c", 3), ("a", 1)]
    assert run("--missing").stdout.splitlines()[-1] == f"2 of 2 streams that missed heartbeats in {WINDOWS[2]}"
    assert rows("--missing", "--window", KEYS[1]) == []


def test_two_questions_and_windows_of_two_lengths_are_refused(computed: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("TIDEMARK_WINDOWS__LENGTH", "1d")
        assert isinstance(run().exception, InvalidSettings)
    said = run("--silent", "--started")
    assert said.exit_code == 2
    assert "give only one of --silent, --started and --missing" in " ".join(said.stderr.replace("│", " ").split())
