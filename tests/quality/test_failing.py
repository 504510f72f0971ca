"""Failing runs are told by the lake: notes that runs leave, those that still stand, and what the commands say."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.clock import ManualClock
from tests.watermark.builders import at
from tidemark.pipeline.errors import LakeFull, SparkUnreachable, TableFailed, WindowNotClosed
from tidemark.pipeline.lake.failures import KEPT, OF_TABLES, REASON_LENGTH, RUNS, FailedRun, FailedRuns
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.tables.table import data_files
from tidemark.pipeline.quality.failing import DRAINS_STAND_FOR, WINDOWS_STAND_FOR, failing, read_failing_tables
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
    found = failing(notes, computed, WINDOWING, at(seconds))
    return "" if found is None else found.sentence()


def test_a_run_s_note_has_the_first_line_of_what_it_failed_with(tmp_path: Path) -> None:
    notes, clock = FailedRuns(DiskObjects(tmp_path)), ManualClock(at(300))
    assert notes.newest() == []
    fail(notes, clock, RuntimeError("\n  no JAR  \nJVM stacktrace:\n…"), (FIRST, SECOND), run="a run/1")
    clock.advance(MINUTE)
    fail(notes, clock, SparkUnreachable("x" * 1000))
    last, first = notes.newest()
    assert first == FailedRun("a run/1", at(300), "RuntimeError: no JAR", [(FIRST, SECOND)])
    assert (last.at, len(last.reason), last.stretches) == (at(360), REASON_LENGTH, [])


def test_the_notes_of_a_job_that_reads_the_subscriptions_go_when_a_run_of_it_lands_again(tmp_path: Path) -> None:
    notes, clock = FailedRuns(DiskObjects(tmp_path)), ManualClock(at(300))
    for job in ("land_continuously", "drain", "land_continuously"):
        with pytest.raises(RuntimeError), notes.noting(job, (), clock, job):
            raise RuntimeError("the session is gone")
        clock.advance(MINUTE)
    fail(notes, clock, RuntimeError("why"), (FIRST, FIRST))
    reading = [one for one in notes.newest() if not one.stretches]
    told = "runs of land_continuously failed 3 times since 2026-11-21T05:25:00Z, last at 2026-11-21T05:27:00Z: "
    assert standing(reading, {}, 600) == f"{told}RuntimeError: the session is gone"
    notes.settled("land_continuously")
    assert [one.job for one in notes.newest()] == ["", "drain"]
    assert standing(notes.newest()[1:], {}, 600).startswith("runs of drain failed once, at 2026-11-21T05:26:00Z")
    (tmp_path / RUNS.prefix / "broken.json").write_text("{")
    notes.settled("drain")
    assert [one.stretches for one in notes.newest()] == [[(FIRST, FIRST)]]


def test_a_note_has_no_secret_of_an_address(tmp_path: Path) -> None:
    notes = FailedRuns(DiskObjects(tmp_path))
    error = SparkUnreachable("no server answers at sc://spark.example/;token=hush;user_id=me (refused)")
    fail(notes, ManualClock(at(0)), error)
    said = "no server answers at sc://spark.example/;token=…;user_id=me (refused)"
    assert [one.reason for one in notes.newest()] == [f"SparkUnreachable: {said}"]


def test_what_is_asked_for_too_early_is_no_failure_of_a_run(tmp_path: Path) -> None:
    notes = FailedRuns(DiskObjects(tmp_path))
    fail(notes, ManualClock(at(0)), WindowNotClosed("wait"), (FIRST, FIRST))
    assert notes.newest() == []


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
    assert (other.table, other.sentence()) == (
        "other",
        "runs of the table other failed once, at 2026-11-21T05:20:00Z: ValueError: of another",
    )
    assert (mine.failures, mine.last) == (KEPT, clock.now())
    assert mine.sentence() == (
        f"runs of the table mine failed {KEPT} times since 2026-11-21T05:23:00Z, "
        f"last at 2026-11-21T05:42:00Z: TableFailed: no region {KEPT + 1}"
    )
    assert lake.own_tables() == [], "notes alone make no table"


def test_a_table_s_failures_are_over_with_its_next_commit_and_forgotten_a_day_after_the_last(tmp_path: Path) -> None:
    lake, clock = Lake(LakeSettings(uri=f"file:{tmp_path}"), {}, ManualClock(at(0))), ManualClock(at(0))
    fail(lake.failed_runs("mine"), clock, TableFailed("before"))
    table = lake.table("tables/mine")
    write_deltalake(table.uri, pa.table({"window": [FIRST], "n": [1]}), partition_by=["window"])
    (file,) = data_files(lake.table("tables/mine").current(), "window")
    clock.advance(file.added_at - clock.now() - MINUTE)
    fail(lake.failed_runs("mine"), clock, TableFailed("before"))
    assert read_failing_tables(lake, clock.now()) == []
    clock.advance(2 * MINUTE)
    fail(lake.failed_runs("mine"), clock, TableFailed("after"))
    (mine,) = read_failing_tables(lake, clock.now() + WINDOWS_STAND_FOR)
    assert (mine.failures, mine.reason) == (1, "TableFailed: after")
    assert read_failing_tables(lake, clock.now() + WINDOWS_STAND_FOR + MINUTE) == []


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


def test_of_a_drain_and_of_what_nobody_tries_any_more_it_is_spoken_for_a_while() -> None:
    drain, windows = note(300), note(300, (FIRST, FOURTH))
    hour, day = (one.total_seconds() for one in (DRAINS_STAND_FOR, WINDOWS_STAND_FOR))
    assert standing([drain], {}, 300 + hour) == "runs failed once, at 2026-11-21T05:25:00Z: why"
    assert standing([drain], {}, 301 + hour) == ""
    assert standing([windows], {}, 300 + day) != ""
    assert standing([windows], {}, 301 + day) == ""
    assert standing([note(300, ("2026-11-21T12-00Z", "no window"))], {}, 301) == ""
