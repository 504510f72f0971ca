"""`tidemark release` on lakes that ticks have built: what it shows, what it refuses, and what follows."""

import getpass
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.cli.test_explain import said as told
from tests.ingest.fakes import World, WorldSubscription
from tests.watermark.builders import START, at
from tidemark.pipeline.cli import here
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeError, ReadingUnavailable
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.state import Lost
from tidemark.pipeline.windows import Windowing

CONFIG = """\
[pubsub]
emulator_host = "127.0.0.1:1"

[message.fields]
load = "number"

[windows]
length = "1m"

[lake]
uri = "file:{lake}"
"""


class Operator:
    """A world in which another consumer holds a message of base, and the command, run at that world's time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(folder)
        self.elsewhere = WorldSubscription(self.world, "base")
        (folder / "tidemark.toml").write_text(CONFIG.format(lake=self.world.folder))
        monkeypatch.setenv("TIDEMARK_CONFIG", str(folder / "tidemark.toml"))
        monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
        monkeypatch.setattr(here, "SystemClock", lambda: self.world.clock)

    def live(self, seconds: int) -> None:
        """A message each second that happened a second before, and both ticks every forty."""
        for second in range(seconds):
            self.world.topic.publish(self.now - 1)
            self.world.wait(1)
            if second % 40 == 39:
                self.world.tick()

    def lose_one(self) -> None:
        """Publish a message that another consumer takes from base, and keeps."""
        self.straggler = self.world.topic.publish(self.now - 1)
        assert len(self.elsewhere.pull(1, 1000, 1)) == 1
        self.world.wait(1)

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return (self.world.clock.now() - START).total_seconds()

    @property
    def watermark(self) -> datetime | None:
        """As the lake knows it."""
        return self.world.lake().tracking_log().catch_up().watermark

    def run(self, *arguments: str, answer: str | None = None) -> Result:
        """The command, in this process."""
        return CliRunner().invoke(app, ["release", *arguments], input=answer)

    def facts(self, *arguments: str) -> dict[str, Any]:
        """What it prints as JSON."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.output)


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    found = Operator(tmp_path, monkeypatch)
    yield found
    found.elsewhere.close()


@pytest.fixture
def stuck(operator: Operator) -> Operator:
    """Four minutes of traffic; base does not get the message of second 40."""
    operator.live(40)
    operator.lose_one()
    operator.live(200)
    return operator


def time_of(seconds: float) -> str:
    return iso(at(seconds))


def test_a_release_shows_what_is_outstanding_and_predicts_what_the_next_tick_decides(stuck: Operator) -> None:
    facts = stuck.facts("--before", time_of(200))
    published = stuck.straggler.publish_time.ToDatetime(START.tzinfo)
    assert facts["base_oldest_unacked"] == iso(published)
    (line,) = facts["outstanding"]
    assert line["published_from"] == iso(published.replace(microsecond=0))
    assert (line["tracked"] - line["landed"], line["outstanding_at_most"], facts["outstanding_at_most"]) == (1, 1, 1)
    assert facts["tracked"] == facts["landed"] + 1 > 100
    assert datetime.fromisoformat(facts["oldest_event_time"]) < published
    assert (facts["notes"], facts["released"], facts["with"]["reason"]) == ([], False, "RELEASED")
    windowing = Windowing(timedelta(minutes=1), START)
    without, released = (datetime.fromisoformat(facts[which]["watermark"]) for which in ("without", "with"))
    closing = [window.key for window in windowing.between(windowing.containing(without).start, released)]
    found = facts["windows_closing"], facts["first_window"], facts["last_window"]
    assert found == (len(closing), closing[0], closing[-1])
    stuck.facts("--before", time_of(200), "--yes")
    log = stuck.world.lake().tracking_log()
    entry = log.entry(log.numbers()[-1])
    assert (entry.before, entry.at) == (at(200), stuck.world.clock.now())
    assert entry.by.split("@")[0] in (getpass.getuser(), f"uid-{os.getuid()}")
    decision = stuck.world.track().decision
    assert decision.watermark is not None
    assert (iso(decision.watermark), decision.reason) == (facts["with"]["watermark"], Reason.RELEASED)


def test_without_a_watermark_windows_close_from_what_landed_before_tracking(operator: Operator) -> None:
    operator.lose_one()
    old = operator.world.topic.publish(operator.now - 600)
    for message in (operator.straggler, old):
        operator.world.tracking.taken_by_somebody_else(message)
    operator.live(80)
    operator.world.track()
    assert operator.watermark is None
    facts = operator.facts("--before", time_of(operator.now - 20))
    assert (facts["without"]["reason"], facts["with"]["reason"]) == ("HELD_INCOMPLETE", "RELEASED")
    windowing = Windowing(timedelta(minutes=1), START)
    assert facts["first_window"] == windowing.containing(at(1 - 600)).key
    assert facts["last_window"] == windowing.containing(at(0)).key


def test_people_are_shown_the_same_and_asked(stuck: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = stuck.facts("--before", time_of(200))
    refused = stuck.run("--before", time_of(200), answer="n\n")
    assert refused.exit_code == 1
    for value in (facts["base_oldest_unacked"], facts["with"]["watermark"], facts["outstanding"][0]["published_from"]):
        assert value in refused.output
    closing = f"{facts['windows_closing']} windows would close"
    assert all(said in told(refused) for said in (closing, "release again to go further", "nothing was released"))
    assert stuck.world.lake().tracking_log().catch_up().released_before is None

    monkeypatch.setattr("tidemark.pipeline.cli.output.FILE_WIDTH", 40)
    narrow = stuck.run("--before", time_of(200), answer="y\n")
    assert narrow.exit_code == 0
    counts = [str(facts[name]) for name in ("tracked", "landed", "outstanding_at_most")]
    assert counts in [line.split()[1:4] for line in narrow.output.splitlines()]
    assert stuck.world.lake().tracking_log().catch_up().released_before == at(200)


def test_a_reading_that_names_no_message_is_not_said_to_be_one(operator: Operator) -> None:
    operator.live(40)
    oldest = iso(operator.world.track().decision.base.oldest_unacked)
    operator.world.wait(5)
    said = told(operator.run("--before", time_of(operator.now), answer="n\n"))
    assert f"Base has acknowledged everything that was published before {oldest}" in said
    assert "oldest unacknowledged" not in said


def test_a_release_takes_into_account_messages_that_tracking_never_saw(stuck: Operator) -> None:
    stuck.world.log.append(Lost("an entry, for the test"))
    stuck.world.track()
    facts = stuck.facts("--before", time_of(200))
    (note,) = facts["notes"]
    assert "more may be outstanding" in note
    assert facts["with"]["reason"] == "HELD_INCOMPLETE"
    assert note in told(stuck.run("--before", time_of(200), answer="n\n"))


def test_a_time_to_come_is_refused(operator: Operator) -> None:
    result = operator.run("--before", iso(START + timedelta(days=400)), "--yes")
    assert (result.exit_code, "is in the future" in told(result)) == (2, True)


def test_there_is_nothing_to_release_before_the_first_decision_and_where_base_is_past_it(operator: Operator) -> None:
    operator.world.wait(60)
    assert "no decision has been made" in told(operator.run("--before", time_of(10), "--yes"))
    operator.live(40)
    operator.world.track()
    result = operator.run("--before", time_of(30), "--yes")
    assert isinstance(result.exception, LakeError)
    assert "nothing to release before " in told(result)
    assert operator.world.lake().tracking_log().catch_up().released_before is None


def test_where_base_was_never_read_nothing_is_released(operator: Operator) -> None:
    operator.world.fails["read base"] = ReadingUnavailable("for the test")
    operator.world.tick()
    operator.world.wait(60)
    assert "was never read" in told(operator.run("--before", time_of(30), "--yes"))
    assert operator.world.lake().tracking_log().catch_up().released_before is None
