"""Failing runs and ticks, told by notes in the lake and in a file outside of it: which still stand, and why nobody
decides."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PythonException

from tests.clock import ManualClock
from tests.watermark.builders import at
from tidemark.pipeline.errors import LakeFull, SparkUnreachable, TableFailed
from tidemark.pipeline.lake.failures import KEPT, OF_TABLES, RUNS, FailedRun, FailedRuns, FailedTick, FailedTicks
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store import notes as slots
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.notes import SLOT, SLOTS, SlotFile
from tidemark.pipeline.machine import ProcessName
from tidemark.pipeline.quality.failing import (
    DRAINS_STAND_FOR,
    KIND,
    WINDOWS_STAND_FOR,
    Running,
    TickNotes,
    TicksNow,
    failing,
    read_failing_tables,
    read_running,
    ticks_now,
)
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.windows import Windowing

MINUTE = timedelta(minutes=1)
WINDOWING = Windowing(MINUTE, at(0) - timedelta(days=1))
FIRST, SECOND, THIRD, FOURTH = (WINDOWING.containing(at(60.0 * number)).key for number in range(4))


def fail(
    notes: FailedRuns, clock: ManualClock, error: Exception, *stretches: tuple[str, str], run: str = "run"
) -> None:
    with pytest.raises(type(error)), notes.noting(run, stretches, clock):
        raise error


def note(seconds: float, *stretches: tuple[str, str], reason: str = "why") -> FailedRun:
    return FailedRun("run", at(seconds), reason, stretches)


def standing(notes: list[FailedRun], computed: dict[str, datetime], seconds: float) -> str:
    found = failing(notes, computed, WINDOWING.length, at(seconds))
    return "" if found is None else found.sentence()


def test_a_note_has_no_secret_of_an_address(tmp_path: Path) -> None:
    notes = FailedRuns(DiskObjects(tmp_path))
    error = SparkUnreachable("no server answers at sc://spark.example/;token=hush;user_id=me (refused)")
    fail(notes, ManualClock(at(0)), error)
    said = "no server answers at sc://spark.example/;token=…;user_id=me (refused)"
    assert [one.reason for one in notes.newest()] == [f"SparkUnreachable: {said}"]
    trace = 'Traceback:\n  File "slices.py", line 9\n    raise Error\nOSError: token=hush is too long\n'
    fail(notes, ManualClock(at(1)), PythonException(f"\nAn exception was thrown from the Python worker.\n{trace}"))
    assert notes.newest()[0].reason == "PythonException: OSError: token=… is too long"


def test_a_note_that_cannot_be_written_or_read_changes_nothing(tmp_path: Path) -> None:
    class Full(DiskObjects):
        def create(self, name: str, content: bytes) -> None:  # noqa: ARG002 (the protocol's signature)
            raise LakeFull("no space")

    fail(FailedRuns(Full(tmp_path)), ManualClock(at(0)), SparkUnreachable("gone"), (FIRST, FIRST))
    objects = DiskObjects(tmp_path)
    objects.create(f"{RUNS.prefix}a.json", b"\xff")
    objects.create(f"{RUNS.prefix}b.json", json.dumps({"tidemark.format": "2"}).encode())
    objects.create(f"{RUNS.prefix}c.json", b"[]")
    assert FailedRuns(objects).newest() == []


def test_after_the_clock_was_set_back_new_failures_replace_the_earlier_notes(tmp_path: Path) -> None:
    notes = FailedRuns(DiskObjects(tmp_path))
    for number in range(KEPT):
        fail(notes, ManualClock(at(3600 + number)), ValueError("ahead"), run=f"run{number}")
    fail(notes, ManualClock(at(0)), ValueError("now"))
    assert [one.run for one in notes.newest()[-2:]] == ["run1", "run"], "the oldest is gone"


def test_a_table_of_ones_own_has_notes_of_its_own_and_as_many(tmp_path: Path) -> None:
    lake, clock = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, ManualClock(at(0))), ManualClock(at(0))
    fail(lake.failed_runs(), clock, ValueError("of heartbeat_diffs"), (FIRST, FIRST))
    fail(lake.failed_runs("other"), clock, ValueError("of another"), (FIRST, FIRST))
    for number in range(KEPT + 2):
        clock.advance(MINUTE)
        fail(lake.failed_runs("mine"), clock, TableFailed(f"no region {number}\nand more"), (FIRST, SECOND))
    assert [note.reason for note in lake.failed_runs().newest()] == ["ValueError: of heartbeat_diffs"]
    assert len(list(lake.objects().names(OF_TABLES))) == KEPT + 1
    mine, other = read_failing_tables(lake, clock.now())
    assert other.table == "other"
    assert other.sentence() == "runs of the table other failed once, at 2026-11-21T05:20:00Z: ValueError: of another"
    assert (mine.failures, mine.last) == (KEPT, clock.now())
    assert mine.sentence() == (
        f"runs of the table mine failed {KEPT} times since 2026-11-21T05:23:00Z, "
        f"last at 2026-11-21T05:42:00Z: TableFailed: no region {KEPT + 1}"
    )
    assert lake.own_tables() == [], "notes alone make no table"


def test_a_table_s_failures_are_over_once_their_windows_are_computed_and_a_day_after_the_last(tmp_path: Path) -> None:
    lake, clock = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, ManualClock(at(0))), ManualClock(at(0))
    fail(lake.failed_runs("mine"), clock, TableFailed("before"))
    rows = pa.table({"window": [FIRST, THIRD], "n": [1, 1]})
    write_deltalake(lake.table("tables/mine").uri, rows, partition_by=["window"])
    clock.advance(lake.table("tables/mine").files()[0].added_at - clock.now() - MINUTE)
    fail(lake.failed_runs("mine"), clock, TableFailed("before"), (FIRST, THIRD))
    assert read_failing_tables(lake, clock.now()) == []
    for window, reason in ((SECOND, "never computed"), (FIRST, "after")):
        clock.advance(2 * MINUTE)
        fail(lake.failed_runs("mine"), clock, TableFailed(reason), (window, window))
    (mine,) = read_failing_tables(lake, clock.now() + WINDOWS_STAND_FOR)
    assert (mine.failures, mine.reason) == (2, "TableFailed: after")
    assert read_failing_tables(lake, clock.now() + WINDOWS_STAND_FOR + MINUTE) == []
    (mine,) = read_failing_tables(lake, clock.now() - MINUTE / 2)
    assert mine.reason == "TableFailed: never computed", "the clock was set back after the other failure"
    longer = DeltaTable.create(lake.table("tables/longer").uri, rows.schema, partition_by=["window"])
    longer.alter.set_table_properties({"tidemark.window_length": "2m"}, raise_if_not_exists=False)
    fail(lake.failed_runs("longer"), clock, TableFailed("of a minute"), (SECOND, SECOND))
    assert [each.table for each in read_failing_tables(lake, clock.now())] == ["mine"], "it has no such window any more"
    for commit in (tmp_path / "tables" / "mine" / "_delta_log").iterdir():
        commit.write_text("damaged")
    (mine,) = read_failing_tables(lake, clock.now())
    assert mine.failures == 4, "no commit after them is known"


def test_a_failure_stands_until_each_of_its_windows_was_computed_after_it() -> None:
    notes = [note(400, (FIRST, THIRD), reason="the newest"), note(300, (FIRST, FIRST))]
    all_of_it = f"runs over windows from {FIRST} on failed 2 times since 2026-11-21T05:25:00Z, last at "
    assert standing(notes, {}, 500) == f"{all_of_it}2026-11-21T05:26:40Z: the newest"
    computed = {FIRST: at(350), SECOND: at(450)}
    assert standing(notes, computed, 500) == (
        f"runs over windows from {FIRST} on failed once, at 2026-11-21T05:26:40Z: the newest"
    )
    computed |= {FIRST: at(450)}
    assert standing(notes, computed, 500).startswith(f"runs over {THIRD} failed once")
    assert standing(notes, computed | {THIRD: at(450)}, 500) == ""
    before_the_clock_was_set_back = [note(9000, (FIRST, SECOND))]
    assert standing(before_the_clock_was_set_back, {FIRST: at(450)}, 500).startswith(f"runs over {SECOND} failed once")


def test_of_a_drain_and_of_what_nobody_tries_any_more_it_is_spoken_for_a_while() -> None:
    drain, windows = note(300), note(300, (FIRST, FOURTH))
    hour, day = (one.total_seconds() for one in (DRAINS_STAND_FOR, WINDOWS_STAND_FOR))
    assert standing([drain], {}, 300 + hour) == "runs failed once, at 2026-11-21T05:25:00Z: why"
    assert standing([drain], {}, 301 + hour) == ""
    assert standing([windows], {}, 300 + day) != ""
    assert standing([windows], {}, 301 + day) == ""
    assert standing([note(300, ("2026-11-21T12-00Z", "no window"))], {}, 301) == ""


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
        return read_running(self.settings)

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


def test_the_longest_hostile_reasons_of_all_sensors_fit(home: Home) -> None:
    notes, hostile = home.notes(), "\x1b]0;gone\x07\u202e" + "\U0001f4a5" * 300
    sensors = ("tracking", "landing", "ingest", "staleness", "tables", "requeue")
    for sensor in sensors:
        notes.failed(sensor, RuntimeError(hostile), None)
    assert [one.sensor for one in home.said().failing] == list(sensors)
    assert all(one.sentence().isprintable() for one in home.said().failing)
    assert home.file.path.stat().st_size == SLOT * SLOTS


def test_ticks_go_on_without_room_for_the_file_and_with_it(home: Home, caplog: pytest.LogCaptureFixture) -> None:
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
    for lake in (FailedTicks(DiskObjects(Path("/dev/null"))), home.in_lake):  # the first one cannot delete it
        notes.good("landing", lake)
    assert home.in_lake.newest() == []


def test_why_nobody_decides_follows_from_facts_of_the_process(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (home.now(0, seconds=30).standing, home.now(30, seconds=0).standing) == (None, None)
    assert "the clock was set back, or is behind" in (home.now(31, seconds=0).standing or "")
    assert "no running process of the pipeline has recorded a tick" in (home.now(0, seconds=31).standing or "")
    home.notes().failed("landing", RuntimeError("why"), None)
    lives = home.now(0, seconds=31)
    assert lives.is_alive
    assert "is alive but gets no ticks" in (lives.standing or "")
    monkeypatch.setattr(ProcessName, "is_paused", lambda _: True)
    assert f"Resume it: `kill -CONT {os.getpid()}`" in (home.now(0, seconds=31).standing or "")
    said = home.said()
    home.file.write(ended(said))
    assert "has ended. Start the pipeline" in (home.now(0, seconds=31).standing or "")
    assert home.now(0, seconds=31).failures[1].startswith("ticks of the sensor landing failed once")
    assert home.now(0, seconds=5).failing == []  # somebody else decides meanwhile
    home.file.write(replace(said, process=ProcessName("elsewhere", "another start", 7, 1.0, at(0))))
    assert "the pipeline ran on elsewhere. Look" in (home.now(0, seconds=31).standing or "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in (home.now(0, seconds=31).standing or "")
    home.notes().failed("tracking", RuntimeError("disk I/O error"), None)
    assert f"disk I/O error. Now {home.toml.parent}/state" in (home.now(0, seconds=31).standing or "")


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
    assert (said.stale_settings or "").endswith("read at its start: restore the file before the next restart")
    assert ended(said).stale_settings is None  # it has ended
