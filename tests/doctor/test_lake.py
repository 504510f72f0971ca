"""What doctor says of the lake's place, its clock and its versions."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.doctor.world import A_GOOD_BUCKET, World
from tests.ingest import fakes
from tests.official_emulator import free_port
from tests.quality.test_failing import Home, ended
from tests.quality.test_gate import live
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.checks import CHECKS, LAKE
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.doctor.lake import check_lake, check_lake_version, check_running, check_tables
from tidemark.pipeline.doctor.rest import check_clock
from tidemark.pipeline.errors import LakeFull
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings


def one_of(setup: Setup, look: Any) -> CheckFinding:
    (finding,) = examine(setup, [Check("it", look)])
    return finding


def in_folder(folder: Path) -> Setup:
    return Setup(Settings(lake=LakeSettings(uri=f"file:{folder}")), SystemClock())


def test_a_bucket_that_would_harm_a_lake_is_said(world: World) -> None:
    world.bucket |= {
        "retentionPolicy": {"retentionPeriod": "86400"},
        "defaultEventBasedHold": True,
        "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]},
        "versioning": {"enabled": True},
        "softDeletePolicy": {"retentionDurationSeconds": "604800"},
        "iamConfiguration": {},
    }
    *wrong, _ = examine(world.setup(), [Check("lake", check_lake)])
    expected = [
        (Level.BROKEN, "--clear-retention-period"),
        (Level.BROKEN, "--no-default-event-based-hold"),
        (Level.BROKEN, "a lifecycle rule of gs://the-lake deletes objects ({'age': 30})"),
        (Level.WARNING, "--no-versioning"),
        (Level.WARNING, "for 7d (soft delete)"),
        (Level.WARNING, "could be made public"),
        (Level.WARNING, "per-object ACLs"),
    ]
    for finding, (level, said) in zip(wrong, expected, strict=True):
        assert (finding.level, said in finding.said) == (level, True)
    for condition in ({"isLive": False}, {"age": 30, "matchesPrefix": ["logs/", "lake-2/"]}):
        rule = {"action": {"type": "Delete"}, "condition": condition}
        world.bucket = {**A_GOOD_BUCKET, "lifecycle": {"rule": [rule]}}
        assert one_of(world.setup(), check_lake).level is Level.OK
    rule = {"action": {"type": "Delete"}, "condition": {"age": 1, "matchesSuffix": [".tmp"]}}
    world.bucket = {**A_GOOD_BUCKET, "lifecycle": {"rule": [rule]}}
    assert examine(world.setup(), [Check("lake", check_lake)])[0].level is Level.WARNING


def test_a_bucket_that_is_missing_silent_or_not_to_be_looked_at_is_told_apart(world: World) -> None:
    world.bucket_status = 403
    shown = one_of(world.setup(), check_lake)
    assert (shown.level, "storage.buckets.get" in shown.said) == (Level.WARNING, True)
    world.bucket = None
    missing = one_of(world.setup(), check_lake)
    assert (missing.level, "gcloud storage buckets create gs://the-lake" in missing.said) == (Level.BROKEN, True)
    world.endpoint = f"http://127.0.0.1:{free_port()}"
    silent = one_of(world.setup(), check_lake)
    assert (silent.level, "check the network and lake.endpoint" in silent.said) == (Level.BROKEN, True)


def test_a_folder_that_can_be_made_is_well_and_one_below_a_file_is_not(tmp_path: Path) -> None:
    assert one_of(in_folder(tmp_path / "not" / "yet"), check_lake).level is Level.OK
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    finding = one_of(in_folder(tmp_path / "file" / "lake"), check_lake)
    assert (finding.level, f"{tmp_path / 'file'} is not a folder" in finding.said) == (Level.BROKEN, True)


def test_clocks_that_differ_are_said_with_the_difference(world: World) -> None:
    for ahead, level, said in (
        (0, Level.OK, "agrees with Cloud Storage's"),
        (-120, Level.BROKEN, "ahead of Cloud Storage's, more than 10s"),
        (-6, Level.WARNING, "ahead of Cloud Storage's"),
        (120, Level.WARNING, "behind Cloud Storage's"),
    ):
        world.clock_is_ahead = timedelta(seconds=ahead)
        finding = one_of(world.setup(), check_clock)
        assert (finding.level, said in finding.said) == (level, True)
        assert abs(ahead) < 120 or "1m5" in finding.said or "2m" in finding.said


def test_a_lost_end_of_the_log_and_a_table_with_a_damaged_log_are_broken(tmp_path: Path) -> None:
    world = fakes.World(tmp_path)
    live(world)
    shutil.rmtree(world.folder / "tracking")
    finding = one_of(in_folder(world.folder), check_lake_version)
    assert (finding.level, "the tracking log is empty, but it once had" in finding.said) == (Level.BROKEN, True)
    min((world.folder / "heartbeats" / "_delta_log").iterdir()).write_text("damaged")
    found = examine(in_folder(world.folder), [check for check in CHECKS if check.subject == LAKE])
    assert [one.said.rpartition("#")[2] for one in found if one.level is Level.BROKEN] == ["what-is-found)"]
    streams = world.folder / "streams" / "_delta_log" / f"{0:020d}.json"
    streams.parent.mkdir(parents=True)
    streams.write_text("damaged")
    found = examine(in_folder(world.folder), [Check("tables", check_tables)])
    assert [f"or delete {world.folder}/streams" in one.said for one in found] == [True, False]


def test_a_failure_is_broken_while_its_process_lives_and_a_warning_if_it_may_have_stopped(tmp_path: Path) -> None:
    world = fakes.World(tmp_path)
    home = Home(tmp_path, lake=world.lake_settings.uri, clock=world.clock)

    def found() -> list[tuple[Level, str]]:
        findings = examine(Setup(home.settings, world.clock), [Check("lake", check_running)])
        return [(finding.level, finding.said[:40]) for finding in findings]

    assert found() == []
    live(world)
    assert found() == [(Level.OK, "the newest decision is 0s old")]
    notes = home.notes()
    notes.failed("landing", LakeFull("no space"), None)
    assert found() == [(Level.BROKEN, "ticks of the sensor landing failed once,")]
    world.wait(31)
    nobody, landing = found()
    assert nobody == (Level.BROKEN, "no decision for 31s, since 2026-11-21T05")
    assert landing[0] is Level.BROKEN
    home.file.write(ended(home.said()))
    assert {level for level, _ in found()} == {Level.WARNING}
    notes.good("landing", home.in_lake)
    world.track()
    home.toml.write_text(home.toml.read_text() + "# more\n")
    assert [level for level, _ in found()] == [Level.WARNING, Level.OK]
