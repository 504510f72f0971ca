"""`tidemark quarantine`, with and without --requeue, of messages that anybody may have published; and `tidemark diffs
--corrections`."""

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Place
from tests.lake.builders import append_rejected, put
from tests.lake.test_streams import KEYS, beats
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS
from tidemark.pipeline.quality.corrected import DIFFS_KEY, FollowedTable, follow
from tidemark.pipeline.watermark.state import Lost

NOW = SystemClock().now()
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold]\u202e"
CONFIG = '[lake]\nuri = "file:{folder}/lake"\n[message]\nstream_id = "attribute:{attribute}"\n'


def reject(place: Place, *messages: dict[str, Any]) -> None:
    """Messages that were rejected, as many hours ago as they say."""
    for message in messages:
        moment = SystemClock().now() - timedelta(hours=message.pop("hours"))
        attributes = {"event_time": str(to_us(moment) // 1000)} | message.pop("attributes", {})
        times = {"publish_time": moment, "landed_at": moment}
        append_rejected(place.lake().quarantine(), {**message, **times, "attributes": attributes})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Three that were parked by a wrong contract, which is correct by now; and one that no contract takes."""
    (tmp_path / "tidemark.toml").write_text(CONFIG.format(folder=tmp_path, attribute="stream_id"))
    found = Place(tmp_path)
    parked = {"attributes": {"stream_id": HOSTILE}}
    reject(found, {"message_id": "1", "hours": 50, **parked}, {"message_id": "2", "hours": 3, **parked})
    reject(found, {"message_id": "3", "hours": 1, **parked, "payload": ('{"note": "' + "ä" * 500 + '"}').encode()})
    reject(
        found,
        {"message_id": "4", "hours": 2, "reason": "UNREADABLE_PAYLOAD", "detail": HOSTILE, "payload": b"\xff\x1b[2J"},
    )
    return found


def test_it_counts_by_reason_then_shows_the_newest_first_short_and_harmless(place: Place) -> None:
    said = place.tidemark("quarantine")
    assert (said.code, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[:3] == [
        ["reason", "waiting", "requeued"],
        ["NO_STREAM_ID", "3", "0"],
        ["UNREADABLE_PAYLOAD", "1", "0"],
    ]
    assert [line[1] for line in lines if line[:1] == ["message"]] == ["3", "4", "2", "1"]
    assert all(one.isprintable() or one == "\n" for one in said.out)
    assert "\\x1b]0;owned" in said.out
    assert "\\xff\\x1b[2J" in said.out
    assert "ä" * 100 in said.out
    assert "ä" * 200 not in said.out


def test_reason_and_time_and_number_say_what_is_shown(place: Place) -> None:
    def told(*arguments: str) -> list[str]:
        facts = json.loads(place.tidemark("quarantine", "--json", *arguments).out)
        return [message["message_id"] for message in facts["messages"]]

    assert told() == ["3", "4", "2", "1"]
    assert told("--reason", "no_stream_id") == ["3", "2", "1"]
    assert told("--since", "150m") == ["3", "4"]
    assert told("--since", (NOW - timedelta(hours=4)).isoformat(), "--limit", "2") == ["3", "4"]
    facts = json.loads(place.tidemark("quarantine", "--json", "--since", "150m").out)
    assert (facts["waiting"], facts["requeued"]) == ({"NO_STREAM_ID": 1, "UNREADABLE_PAYLOAD": 1}, {})
    assert base64.b64decode(facts["messages"][1]["payload_base64"]) == b"\xff\x1b[2J"
    assert facts["messages"][0]["attributes"]["stream_id"] == HOSTILE


def test_a_time_a_reason_or_a_dry_run_that_makes_no_sense_is_refused(place: Place) -> None:
    wrong = (("--since", "yesterday"), ("--since", "2026-11-21T05:00:00"), ("--reason", "BAD"), ("--dry-run",))
    for arguments in wrong:
        assert place.tidemark("quarantine", *arguments).code == 2


def test_requeue_lands_what_passes_and_status_tells_it_from_what_waits(place: Place) -> None:
    dry = place.tidemark("quarantine", "--requeue", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    said = [" ".join(line.split()) for line in dry.out.splitlines()]
    assert (said[0], said[3]) == ("would land 3 heartbeats", "still rejected 1 message: 1 NO_STREAM_ID")
    assert place.lake().heartbeats().extent().rows == 0
    place.lake().tracking_log().append(Lost("for the test", NOW))
    facts = json.loads(place.tidemark("quarantine", "--requeue", "--since", "4h", "--json").out)
    assert (facts["landed"], facts["still_rejected"]) == (2, {"NO_STREAM_ID": 1})
    facts = json.loads(place.tidemark("quarantine", "--requeue", "--json").out)
    assert (facts["landed"], facts["still_rejected"]) == (1, {"NO_STREAM_ID": 1})
    status = json.loads(place.tidemark("status", "--json").out)
    assert status["quarantined"] == {"NO_STREAM_ID": 1}, "its payload is not read by the contract of today"
    assert (status["requeued"], status["landed_rows"]) == ({"NO_STREAM_ID": 3}, 3)
    assert "which band is enough (without requeued messages)" in place.tidemark("status").out
    shown = place.tidemark("quarantine").out.splitlines()
    assert shown[1].split() == ["NO_STREAM_ID", "1", "3"]
    assert "UNREADABLE_PAYLOAD" not in "".join(shown)


def test_a_requeue_of_everything_notes_by_which_contract_quarantine_was_judged(place: Place) -> None:
    judged_by = place.lake().judged_by()
    for arguments in (("--dry-run",), ("--reason", "NO_STREAM_ID"), ("--since", "1h")):
        assert place.tidemark("quarantine", "--requeue", *arguments).code == 0
        assert judged_by.digest() is None, arguments
    assert place.tidemark("quarantine", "--requeue").code == 0
    assert judged_by.digest() == place.settings.judged_by


OF_CORRECTIONS = '[lake]\nuri = "file:{folder}/lake"\n'


@pytest.fixture
def corrected(tmp_path: Path) -> Place:
    """The first window has another gap in one row; the second got a row of a stream with a hostile name."""
    (tmp_path / "tidemark.toml").write_text(OF_CORRECTIONS.format(folder=tmp_path))
    found = Place(tmp_path)
    lake = found.lake()
    first, second = beats(0, "a")
    put(lake.diffs(), "one", {KEYS[0]: [first, second], KEYS[1]: beats(1, "a")})
    put(lake.diffs(), "two", {KEYS[0]: [first, {**second, "gap_seconds": 12.5, "message_id": None}]}, version=4)
    put(lake.diffs(), "three", {KEYS[1]: [*beats(1, "a"), beats(1, HOSTILE)[0]]}, version=5)
    assert follow(lake.corrections(), FollowedTable(HEARTBEAT_DIFFS, lake.diffs(), DIFFS_KEY), SystemClock()) == 2
    return found


def corrections(corrected: Place, *arguments: str) -> list[dict[str, Any]]:
    said = corrected.tidemark("diffs", "--corrections", "--json", *arguments)
    assert (said.code, said.err) == (0, "")
    return [json.loads(line) for line in said.out.splitlines()]


def test_the_newest_are_shown_first_with_what_differs_and_harmlessly(corrected: Place) -> None:
    said = corrected.tidemark("diffs", "--corrections")
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
    assert "\\u2192 12.5" in corrected.program("diffs", "--corrections", PYTHONIOENCODING="latin-1").out


def test_table_window_time_and_number_say_what_is_shown(corrected: Place) -> None:
    def windows(*arguments: str) -> list[str]:
        return [row["window"] for row in corrections(corrected, *arguments)]

    assert windows() == [KEYS[1], KEYS[0]]
    assert windows("--window", KEYS[0]) == windows("--window", f"{KEYS[0][:13]}:{KEYS[0][14:16]}:30Z") == [KEYS[0]]
    assert windows("--limit", "1") == [KEYS[1]]
    assert windows("--table", HEARTBEAT_DIFFS, "--since", "1h") == [KEYS[1], KEYS[0]]
    later = "--since", "0s"
    assert windows(*later) == []
    assert corrected.tidemark("diffs", "--corrections", *later).out.startswith("no correction matches")
    refused = corrected.tidemark("diffs", "--corrections", "--table", "another")
    assert refused.code == 1
    assert f"there is no table another; the tables are {HEARTBEAT_DIFFS}" in refused.err


def test_a_lake_without_any_says_how_to_have_them_noted(tmp_path: Path) -> None:
    (tmp_path / "tidemark.toml").write_text(OF_CORRECTIONS.format(folder=tmp_path))
    said = "no corrections were recorded"
    assert (
        Place(tmp_path).tidemark("diffs", "--corrections").out
        == f"{said}; runs record them if windows.corrections is true\n"
    )
    (tmp_path / "tidemark.toml").write_text(f"{OF_CORRECTIONS.format(folder=tmp_path)}[windows]\ncorrections = true\n")
    assert Place(tmp_path).tidemark("diffs", "--corrections").out == f"{said}\n"
