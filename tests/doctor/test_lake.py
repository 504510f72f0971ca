"""What doctor says of the lake's place, its clock and its versions."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.world import World
from tests.lake.test_log_codec import of_a_later_version
from tests.official_emulator import free_port
from tests.watermark.builders import at
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.doctor.lake import check_lake, check_lake_version
from tidemark.pipeline.doctor.rest import check_clock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.state import Beginning


def one_of(setup: Setup, look: Any) -> CheckFinding:
    (finding,) = examine(setup, [Check("it", look)])
    return finding


def in_folder(folder: Path) -> Setup:
    return Setup(Settings(lake=LakeSettings(uri=f"file:{folder}")), SystemClock())


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({"retentionPolicy": {"retentionPeriod": "86400"}}, Level.BROKEN, "--clear-retention-period"),
        ({"defaultEventBasedHold": True}, Level.BROKEN, "--no-default-event-based-hold"),
        (
            {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]}},
            Level.BROKEN,
            "a lifecycle rule of gs://the-lake deletes objects ({'age': 30})",
        ),
        ({"versioning": {"enabled": True}}, Level.WARNING, "--no-versioning"),
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, Level.WARNING, "for 7 more days"),
        ({"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}, Level.WARNING, "could be made public"),
        ({"iamConfiguration": {"publicAccessPrevention": "enforced"}}, Level.WARNING, "access lists of single objects"),
    ],
)
def test_a_bucket_that_would_harm_a_lake_is_said(world: World, change: dict[str, Any], level: Level, said: str) -> None:
    assert world.bucket is not None
    world.bucket |= change
    findings = examine(world.setup(), [Check("lake", check_lake)])
    assert [one.level for one in findings] == [level, Level.OK]
    assert said in findings[0].said


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
    assert (finding.level, "cannot be written to" in finding.said) == (Level.BROKEN, True)


@pytest.mark.parametrize(
    ("ahead", "level", "said"),
    [
        (0, Level.OK, "agrees with Cloud Storage's"),
        (-120, Level.BROKEN, "ahead of Cloud Storage's, more than 10s"),
        (-6, Level.WARNING, "ahead of Cloud Storage's"),
        (120, Level.WARNING, "behind Cloud Storage's"),
    ],
)
def test_clocks_that_differ_are_said_with_the_difference(world: World, ahead: int, level: Level, said: str) -> None:
    world.clock_is_ahead = timedelta(seconds=ahead)
    finding = one_of(world.setup(), check_clock)
    assert finding.level is level
    assert said in finding.said
    if abs(ahead) == 120:
        assert "1m5" in finding.said or "2m" in finding.said


def test_a_lake_of_a_later_version_is_named_with_it_and_never_with_forget(tmp_path: Path) -> None:
    setup = in_folder(tmp_path)
    assert "no tracking log yet" in one_of(setup, check_lake_version).said
    lake = Lake(setup.settings.lake, {}, setup.clock)
    lake.tracking_log().begin(Beginning(at(0)))
    assert one_of(setup, check_lake_version).said.endswith("reads the lake up to its log entry 0")
    lake.objects().create(entry_name(1), of_a_later_version({b"tidemark.format": b"2"}))
    finding = one_of(setup, check_lake_version)
    assert finding.level is Level.BROKEN
    assert "this lake was written by tidemark 7.0.0" in finding.said
    assert "forget" not in finding.said
