"""What a process says outside of the lake: two writers, torn and foreign slots, a disk without room, and how it is read
together with the lake's notes."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.clock import ManualClock
from tests.watermark.builders import at
from tidemark.pipeline.errors import LakeFull
from tidemark.pipeline.lake.failures import FailedTick, FailedTicks
from tidemark.pipeline.lake.store import notes as slots
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.notes import SLOT, SLOTS, SlotFile
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.quality.failing import KIND, Running, TickNotes, TicksNow, read_running, ticks_now
from tidemark.pipeline.settings import Settings, load_settings

TICK = timedelta(seconds=10)


class Home:
    """A settings file with its folders, and a process' notes there."""

    def __init__(self, folder: Path, lake: str = "file:lake", clock: ManualClock | None = None) -> None:
        self.toml = folder / "tidemark.toml"
        self.toml.write_text(f'[lake]\nuri = "{lake}"\n[dagster]\nstorage = "state/dagster"\n')
        (folder / "state").mkdir()
        self.clock = clock or ManualClock(at(0))
        self.in_lake = FailedTicks(DiskObjects(self.settings.lake.folder or folder))
        self.file = SlotFile(folder / "state" / "tidemark.running.json", KIND, 0o600)

    @property
    def settings(self) -> Settings:
        return load_settings(self.toml)

    def notes(self) -> TickNotes:
        return TickNotes(self.settings, self.clock)

    def said(self) -> Running:
        said = read_running(self.settings)
        assert said is not None
        return said

    def now(self, decided: float | None, noted: list[FailedTick] | None = None, seconds: float = 0) -> TicksNow:
        decided_at = None if decided is None else at(decided)
        return ticks_now(self.settings, decided_at, read_running(self.settings), noted or [], at(seconds))


def good(said: Running) -> dict[str, datetime]:
    """When each sensor's last good tick ended."""
    return {name: ticks.good for name, ticks in said.sensors.items() if ticks.good}


def ended(said: Running) -> Running:
    """The same of a process of this machine that has ended."""
    return replace(said, process=replace(said.process, started=-9.0))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_of_two_processes_each_keeps_what_the_other_said_of_its_own_sensors(home: Home) -> None:
    old, new = home.notes(), home.notes()
    old.failed("landing", LakeFull("no space"), home.in_lake)
    old.good("staleness", home.in_lake)
    home.clock.advance(TICK)
    new.good("tracking", home.in_lake)
    new.failed("landing", LakeFull("no space"), home.in_lake)
    old.good("staleness", home.in_lake)
    said = home.said()
    assert good(said) == {"staleness": at(10), "tracking": at(10)}
    assert [(one.sensor, one.failures, one.since) for one in said.failing] == [("landing", 2, at(0))]
    assert said.failing == home.in_lake.newest()
    assert said.process.runs()
    new.good("landing", home.in_lake)
    assert home.said().failing == home.in_lake.newest() == []


def test_a_torn_slot_leaves_the_other_and_the_next_tick_writes_over_it(home: Home) -> None:
    notes = home.notes()
    for _ in range(3):
        notes.good("tracking", home.in_lake)
        home.clock.advance(TICK)
    whole = home.file.path.read_bytes()
    for start in (0, 40, 200):  # the newest of three is in the first slot
        torn = bytearray(whole)
        torn[start : start + 20] = b" " * 20
        home.file.path.write_bytes(torn)
        assert good(home.said()) == {"tracking": at(10)}
    home.file.path.write_bytes(bytes(len(whole)))
    assert read_running(home.settings) is None
    notes.good("tracking", home.in_lake)
    assert good(home.said()) == {"tracking": at(30)}
    home.file.path.write_bytes(whole[: SLOT + 100])
    assert good(home.said()) == {"tracking": at(20)}


def test_what_a_later_version_or_somebody_else_wrote_is_passed_over_and_replaced(home: Home) -> None:
    notes = home.notes()
    notes.good("tracking", home.in_lake)
    mine = home.said()
    for text in (json.dumps({"tidemark.format": "99"}), "[]", json.dumps({"lake": 7}), "\ud800"):
        encoded = b'"turn":7,"said":%s' % text.encode(errors="surrogatepass")
        line = b'{"sum":"%s",%s}' % (slots._sum(encoded), encoded)
        home.file.path.write_bytes(line.ljust(SLOT) + b" " * SLOT)
        assert read_running(home.settings) is None
        notes.good("tracking", home.in_lake)
        assert good(home.said()) == good(mine)
    home.file.path.unlink()
    os.symlink("/dev/null", home.file.path)
    notes.good("tracking", home.in_lake)  # a link is not followed
    assert read_running(home.settings) is None


def test_a_hundred_sensors_with_hostile_reasons_fit_and_the_newest_failures_go_first(home: Home) -> None:
    notes, hostile = home.notes(), "\x1b]0;gone\x07\u202e" + "\U0001f4a5" * 300
    for number in range(100):
        notes.failed(f"sensor_{number:03}_{'x' * 60}", RuntimeError(hostile), None)
        home.clock.advance(TICK)
    failing = home.said().failing
    assert failing
    assert [one.since for one in failing] == [at(10 * number) for number in range(len(failing))]
    assert all(one.sentence().isprintable() for one in failing)
    assert home.file.path.stat().st_size == SLOT * SLOTS


def test_without_room_for_the_file_ticks_go_on_and_with_it_the_file_is_written_in_place(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    notes = home.notes()
    with files_end_at(SLOT):
        for _ in range(3):
            failed = notes.failed("landing", LakeFull("no space"), None)
    assert failed.failures == 3
    assert caplog.text.count("cannot be written") == 1
    assert read_running(home.settings) is None
    notes.failed("landing", LakeFull("no space"), None)
    assert home.said().failing[0].failures == 4
    home.file.path.unlink()  # comes again
    notes.good("landing", home.in_lake)
    assert home.said().failing == []


def test_a_note_that_a_good_tick_has_overtaken_is_over_and_one_of_another_machine_is_not(home: Home) -> None:
    notes = home.notes()
    home.clock.advance(TICK)
    notes.good("landing", home.in_lake)
    stuck = FailedTick("landing", 3, at(0), at(5), "LakeFull: no space")
    assert home.now(10, [stuck], seconds=12).sentences == []
    elsewhere = replace(stuck, last=at(11))
    assert home.now(10, [elsewhere], seconds=12).failing == [elsewhere]
    notes.good("landing", home.in_lake, "1 message waits")
    assert [one.waits for one in home.now(10, home.in_lake.newest(), seconds=12).failing] == [True]


def test_why_nobody_decides_follows_from_what_is_known_of_the_process(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.now(0, seconds=30).standing is None
    assert "its process has left no notes on this machine" in (home.now(0, seconds=31).standing or "")
    home.notes().failed("landing", RuntimeError("why"), None)
    lives = home.now(0, seconds=31)
    assert lives.is_alive
    assert "is alive but gets no ticks" in (lives.standing or "")
    said = home.said()
    home.file.write(ended(said))
    assert "has ended. Start the pipeline" in (home.now(0, seconds=31).standing or "")
    assert home.now(0, seconds=31).failures[1].startswith("ticks of the sensor landing failed once")
    assert home.now(0, seconds=5).failing == []  # somebody else decides meanwhile
    home.file.write(replace(said, process=ProcessName("elsewhere", "another start", 7, 1.0, at(0))))
    assert "it ran on elsewhere. Look" in (home.now(0, seconds=31).standing or "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in (home.now(0, seconds=31).standing or "")


def test_a_settings_file_that_has_changed_is_told_until_it_is_as_it_was_read(home: Home) -> None:
    home.notes().good("tracking", home.in_lake)
    before = home.toml.read_text()
    assert home.now(0).settings is None
    home.toml.write_text(before.replace("file:lake", "file:other"))
    told = home.now(0)  # by a reader of the new file, who opens another lake
    assert f"the settings file {home.toml} changed at " in (told.settings or "")
    assert told.failing == []
    home.toml.write_text(before)
    assert home.now(0).sentences == []
    said = home.said()
    home.toml.unlink()
    assert f"the settings file {home.toml} is gone" in (said.stale_settings or "")
    assert ended(said).stale_settings is None  # it has ended
