"""`tidemark diffs --corrections` on a lake in a folder: what changed in windows that were computed again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Place
from tests.lake.builders import put
from tests.lake.test_streams import KEYS, WINDOWS, beats
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS
from tidemark.pipeline.quality.corrected import DIFFS_KEY, FollowedTable, follow

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold]\u202e"
CONFIG = '[lake]\nuri = "file:{folder}/lake"\n'


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The first window has another gap in one row; the second got a row of a stream with a hostile name."""
    (tmp_path / "tidemark.toml").write_text(CONFIG.format(folder=tmp_path))
    found = Place(tmp_path)
    lake = found.lake()
    first, second = beats(0, "a")
    put(lake.diffs(), "one", {KEYS[0]: [first, second], KEYS[1]: beats(1, "a")})
    put(lake.diffs(), "two", {KEYS[0]: [first, {**second, "gap_seconds": 12.5, "message_id": None}]}, version=4)
    put(lake.diffs(), "three", {KEYS[1]: [*beats(1, "a"), beats(1, HOSTILE)[0]]}, version=5)
    assert follow(lake.corrections(), FollowedTable(HEARTBEAT_DIFFS, lake.diffs(), DIFFS_KEY), SystemClock()) == 2
    return found


def told(place: Place, *arguments: str) -> list[dict[str, Any]]:
    said = place.tidemark("diffs", "--corrections", "--json", *arguments)
    assert (said.code, said.err) == (0, "")
    return [json.loads(line) for line in said.out.splitlines()]


def test_the_newest_are_shown_first_with_what_differs_and_harmlessly(place: Place) -> None:
    said = place.tidemark("diffs", "--corrections")
    assert (said.code, said.err) == (0, "")
    assert all(one.isprintable() or one == "\n" for one in said.out)
    added, changed = said.out.strip().split("\n\n")
    assert added.startswith(f"{HEARTBEAT_DIFFS} {KEYS[1]}: added, replaced at ")
    assert "\\x1b]0;owned" in added
    lines = [line.split() for line in changed.splitlines()]
    assert lines[0][:3] == [HEARTBEAT_DIFFS, f"{KEYS[0]}:", "changed,"]
    assert ["gap_seconds", "—", "→", "12.5"] in lines
    assert ["stream_id", "a"] in lines
    assert not any(line[0] == "late" for line in lines), "what did not change is left out"


def test_table_window_time_and_number_say_what_is_shown(place: Place) -> None:
    def windows(*arguments: str) -> list[str]:
        return [row["window"] for row in told(place, *arguments)]

    assert windows() == [KEYS[1], KEYS[0]]
    assert windows("--window", KEYS[0]) == [KEYS[0]]
    assert windows("--limit", "1") == [KEYS[1]]
    assert windows("--table", HEARTBEAT_DIFFS, "--since", "1h") == [KEYS[1], KEYS[0]]
    assert windows("--since", "2099-01-01T00:00:00Z") == []
    refused = place.tidemark("diffs", "--corrections", "--table", "another")
    assert refused.code == 1
    assert f"there is no table another; the tables are {HEARTBEAT_DIFFS}" in refused.err


def test_what_is_no_window_is_refused(place: Place) -> None:
    said = place.tidemark("diffs", "--corrections", "--window", str(WINDOWS[0].start))
    assert said.code == 2
    assert "not a window key" in said.err


def test_a_lake_without_any_says_how_to_have_them_noted(tmp_path: Path) -> None:
    (tmp_path / "tidemark.toml").write_text(CONFIG.format(folder=tmp_path))
    said = "no corrections were recorded"
    assert (
        Place(tmp_path).tidemark("diffs", "--corrections").out
        == f"{said}; runs record them if windows.corrections is true\n"
    )
    (tmp_path / "tidemark.toml").write_text(f"{CONFIG.format(folder=tmp_path)}[windows]\ncorrections = true\n")
    assert Place(tmp_path).tidemark("diffs", "--corrections").out == f"{said}\n"
