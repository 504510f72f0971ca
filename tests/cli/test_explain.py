"""`tidemark explain` on logs in a folder: what it prints, of now and of any time, and where it cannot tell all."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.ingest.fakes import to_written
from tests.lake.builders import Beat, append_beats, append_rejected, columns_of, lake_in
from tests.watermark.builders import at, published, reading
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, Snapshot

STRAGGLER = 50.25
DEFAULT = Policy()


class Log:
    """A tracking log in a folder: a message each second from 0 on; base holds the one of second 50 from then on."""

    def __init__(self, folder: Path) -> None:
        self.objects = DiskObjects(folder / "lake")
        self.log = TrackingLog(self.objects, checkpoint_every=1_000)
        self.log.begin(Beginning(at(-60)))
        self.published = 0

    def tick(self, second: float, policy: Policy = DEFAULT) -> None:
        """What was published by then is tracked, then decided."""
        beats = range(self.published, int(second))
        self.log.append(Snapshot(published((beat + 0.25, beat - 0.75) for beat in beats)))
        self.published = int(second)
        base = reading(second, STRAGGLER if second > STRAGGLER else second - 1)
        self.log.decide(lambda state: state.decide(base, reading(second), policy, at(second)))

    @property
    def last(self) -> int:
        return self.log.numbers()[-1]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Ticks from second 20 to second 100."""
    (tmp_path / "tidemark.toml").write_text(f'[lake]\nuri = "file:{tmp_path}/lake"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
    found = Log(tmp_path)
    for second in range(20, 101, 10):
        found.tick(second)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


def facts(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def said(result: Result) -> str:
    return " ".join(f"{result.output} {result.exception or ''}".replace("│", " ").split())


def test_the_newest_decision_is_explained_with_its_numbers_to_scripts_and_people(log: Log) -> None:
    found = facts()
    assert (found["reason"], found["at"], found["log_entry"]) == ("PINNED_BY_BACKLOG", iso(at(100)), log.last)
    assert found["watermark"] == iso(at(49.25))
    assert {rule["rule"]: rule["outcome"] for rule in found["conditions"]}["candidate"] == "held"
    assert (found["pin"]["published_from"], found["pin"]["event_time"]) == (iso(at(50)), iso(at(49.25)))
    assert (found["messages_since_base"], found["messages_since_pin"]) == (50, 50)
    assert (found["alternatives"], found["problem"]) == ([], None)
    shown = run()
    assert shown.exit_code == 0
    for sentence in found["explanation"]:
        assert sentence in said(shown)
    for heading in ("The rules, in their order", "What would move it", "Which setting would have changed"):
        assert heading in shown.output
    assert "None of the settings that were tried" in said(shown)


def test_a_decision_of_any_time_is_explained_as_it_was(log: Log) -> None:
    found = facts("--at", iso(at(47)))
    assert (found["at"], found["reason"]) == (iso(at(40)), "ADVANCED")
    assert found["alternatives"][0]["setting"] == "band"
    assert found["alternatives"][0]["further_seconds"] == 5.0
    shown = said(run("--at", iso(at(47))))
    assert "band = 5s 5s further" in shown
    assert "messages with more disorder than that are late" in shown
    newest = facts()
    assert newest.pop("standing_still").startswith("no decision for ")
    assert facts("--at", iso(at(100_000))) == newest
    assert "no decision for " not in shown
    future = run("--at", "2100-01-01T00:00:00Z")
    assert (future.exit_code, "2100-01-01T00:00:00Z is in the future; it is " in said(future)) == (2, True)
    assert "no decision for " in said(run())


def test_a_time_before_the_first_decision_is_refused_unless_the_clock_was_set_back(log: Log) -> None:
    result = run("--at", iso(at(19)))
    assert isinstance(result.exception, LakeError)
    assert f"no decision was in force at {iso(at(19))}: the first in the log was made at {iso(at(20))}" in said(result)
    for second in (-30, -20, -10):
        log.tick(second)
    assert [facts("--at", iso(at(second)))["at"] for second in (-12, 19)] == [iso(at(-20)), iso(at(-10))]


def test_with_entries_lost_the_decision_is_explained_and_what_is_missing_is_named(log: Log) -> None:
    log.objects.delete(entry_name(3))
    found = facts()
    assert (found["reason"], found["alternatives"], found["messages_since_base"]) == ("PINNED_BY_BACKLOG", None, None)
    assert entry_name(3) in found["problem"]
    assert f"{entry_name(3)} is missing from the tracking log; restore a backup" in said(run())


def test_with_an_earlier_decision_damaged_the_newest_is_told_and_the_damage_named(log: Log, tmp_path: Path) -> None:
    (tmp_path / "lake" / entry_name(4)).write_bytes(b"PAR1")
    assert facts()["at"] == iso(at(100))
    assert f"{entry_name(4)} cannot be read" in said(run())


def test_the_streams_that_max_lag_passes_over_are_named_from_what_has_landed(log: Log, tmp_path: Path) -> None:
    late = [Beat("slow", 20, publish_time=90), Beat("slow", 21, publish_time=90.5), Beat("in [time]", 90)]
    append_beats(lake_in(tmp_path).heartbeats(), columns_of(late))
    assert facts()["passed_over_by_stream"] == {}
    log.tick(110, Policy(max_lag=timedelta(minutes=1)))
    assert facts()["passed_over_by_stream"] == {"slow": 2}
    of = "2 of the 3 messages that were published in the hour before the decision and have landed"
    assert f"Messages that lag more than max_lag {of}" in said(run())
    assert "slow 2" in said(run())
    assert "lag more than max_lag" not in said(run("--at", iso(at(100))))
    max((tmp_path / "lake/heartbeats/_delta_log").glob("*.json")).write_text("{no json")
    damaged = run()
    assert isinstance(damaged.exception, LakeError)
    assert "The rules, in their order" in damaged.output, "the decision itself needs no table"


def test_messages_that_were_rejected_for_their_payload_are_named_with_their_streams(log: Log, tmp_path: Path) -> None:
    bad = [("broken", 50.25, 49.25), ("broken", 60.5, 59), ("other", 70, 69), ("before", 10, 9), ("old", 60, 49)]
    append_rejected(
        lake_in(tmp_path).quarantine(),
        *(
            {
                "reason": "TOO_OLD" if stream == "old" else "UNREADABLE_PAYLOAD",
                "message_id": stream + str(publish),
                "publish_time": at(publish),
                "attributes": [("stream_id", stream), ("event_time", to_written(event))],
            }
            for stream, publish, event in bad
        ),
    )
    found = facts()
    assert found["rejected_payloads_by_stream"] == {"broken": 2, "other": 1}
    assert found["rejected_payloads_that_pin"] == {"broken": 1}
    assert "although their payloads were rejected: 3; one of them is the pin" in said(run())
    assert "broken 2 1 other 1 0" in said(run())
    assert "rejected" not in said(run("--at", iso(at(40))))


def test_a_picture_for_a_ticket_is_what_the_json_says_also_of_a_past_decision(log: Log, tmp_path: Path) -> None:
    for name, when in (("now", []), ("past", ["--at", iso(at(60))])):
        file = tmp_path / f"{name}.svg"
        assert run("--picture", str(file), *when).exit_code == 0
        found = facts(*when)
        drawing = file.read_text()
        assert drawing.startswith("<svg xmlns=")
        assert f"{found['reason']}: watermark {found['watermark']}" in drawing
        assert f"{found['plane']['messages']:,} messages that tracking has counted" in drawing
        assert len(found["plane"]["cells"]) == found["plane"]["messages"]
    assert found["lag"][-1][0] == found["at"] == iso(at(60))
    assert "the picture cannot be written" in str(run("--picture", str(tmp_path)).exception)
