"""What `tidemark up` repeats while it runs: each thing once when it begins, and once when it is over."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.ingest.fakes import World
from tests.pubsub.builders import raising
from tests.quality.test_failing import Home, ended
from tests.quality.test_gate import live
from tests.watermark.builders import at
from tidemark.local.services.watch import BEGINS_WITHIN, Watch
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import LakeFull, LakeUnreachable, SparkUnreachable
from tidemark.pipeline.lake.failures import FailedRuns
from tidemark.pipeline.lake.layout import Lake


class Terminal:
    """A watch, what it said, and the notes of the process that it watches, which is this one."""

    def __init__(self, home: Home) -> None:
        self.home, self.clock = home, home.clock
        self.said: list[str] = []
        self.notes = home.notes()
        self.watch = Watch(home.settings, self.clock, self.said.append)

    def new(self, seconds: float = 0) -> list[str]:
        """What it says after so many seconds."""
        self.clock.advance(timedelta(seconds=seconds))
        self.watch.look()
        if self.watch._thread is not None:  # what a look at the lake finds is said by the next look
            self.watch._thread.join()
        self.watch.look()
        said, self.said[:] = list(self.said), []
        return said


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(Home(tmp_path))


def test_ticks_that_fail_are_said_once_and_once_that_they_are_over(terminal: Terminal) -> None:
    terminal.notes.good("tracking", terminal.home.in_lake)
    assert terminal.new() == []
    for _ in range(3):
        terminal.notes.failed("landing", LakeFull("no space"), None)
        terminal.new(1)
    terminal.notes.failed("ingest", RuntimeError("\x1b[2Jwhy"), None)
    assert terminal.new(1) == [rf"ticks of the sensor ingest failed once, at {iso(at(3))}: RuntimeError: \x1b[2Jwhy"]
    terminal.notes.good("landing", terminal.home.in_lake)
    assert terminal.new(1) == ["resolved after 4s: ticks of the sensor landing failed"]


def test_that_nobody_decides_is_said_with_the_reason_once_a_decision_is_due(terminal: Terminal) -> None:
    assert terminal.new(BEGINS_WITHIN.total_seconds() - 1) == []
    terminal.notes.good("tracking", terminal.home.in_lake)
    assert terminal.new(30) == []
    (said,) = terminal.new(1)
    assert said.startswith(f"no decision for 31s, since {iso(at(59))}, although one is due every 10s: the pip")
    assert terminal.new(100) == []
    terminal.notes.good("tracking", terminal.home.in_lake)
    assert terminal.new() == ["resolved after 1m40s: no decision"]


def test_after_the_clock_was_set_back_it_is_said_that_nobody_decides(terminal: Terminal) -> None:
    assert terminal.new(-86_400) == []
    terminal.notes.good("tracking", terminal.home.in_lake)
    (said,) = terminal.new(BEGINS_WITHIN.total_seconds() + 31)
    assert said.startswith("no decision")


def test_what_an_ended_process_said_stands_until_another_one_ticks(terminal: Terminal) -> None:
    file = terminal.home.file
    terminal.notes.failed("landing", LakeFull("no space"), None)
    earlier = file.read()
    file.write(ended(earlier))
    assert terminal.new() == []  # of an earlier start
    terminal.notes.failed("landing", LakeFull("no space"), None)
    assert len(terminal.new()) == 1
    file.write(replace(ended(earlier), sensors={}))
    assert terminal.new(1) == []
    terminal.notes.good("landing", terminal.home.in_lake)
    assert terminal.new(1) == ["resolved after 2s: ticks of the sensor landing failed"]


def test_a_settings_file_that_changes_is_said_and_that_it_is_as_before(terminal: Terminal) -> None:
    toml = terminal.home.toml
    before = toml.read_text()
    toml.write_text(f"{before}# more\n")
    (said,) = terminal.new(1)
    assert f"the settings file {toml} changed at" in said
    assert "restart `tidemark up`" in said
    assert terminal.new(1) == []
    toml.write_text(before)
    assert terminal.new(1) == ["resolved after 2s: the settings file had changed"]


def test_failed_runs_of_the_lake_stand_while_it_is_silent(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = terminal.home.settings
    failed = Lake(settings.lake, settings.message.kinds, terminal.clock).failed_runs()
    with pytest.raises(SparkUnreachable), failed.noting("run", [("2026-11-21T05-20Z",) * 2], terminal.clock):
        raise SparkUnreachable("nothing answers")
    terminal.notes.good("tracking", terminal.home.in_lake)
    (said,) = [one for one in terminal.new(61) if "runs" in one]
    assert said.startswith("runs over 2026-11-21T05-20Z failed once")
    with monkeypatch.context() as silent:
        silent.setattr(FailedRuns, "newest", raising(LakeUnreachable("no answer")))
        assert [one for one in terminal.new(61) if "runs" in one] == []
    failed.settled("")
    assert terminal.new(61)[-1] == "resolved after 2m2s: runs failed"


def test_where_no_process_can_say_anything_the_lake_does(tmp_path: Path) -> None:
    world = World(tmp_path)
    live(world)
    home = Home(tmp_path, lake=world.lake_settings.uri, clock=world.clock)
    home.file.path.parent.rmdir()
    terminal = Terminal(home)
    world.wait(50)
    world.track()
    assert terminal.new(11) == []
    failed = terminal.notes.failed("landing", LakeFull("no space"), home.in_lake)
    first, second = terminal.new(60)
    assert first == failed.sentence()
    assert second.startswith("no decision for 1m11s")
    assert "no running process of the pipeline has recorded a tick" in second
