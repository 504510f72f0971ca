"""Which settings follow from which facts, and how they get into the user's own file."""

import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.watermark.builders import at
from tidemark.pipeline.doctor.measure.facts import (
    ClockFacts,
    DelayFacts,
    Facts,
    FilterFacts,
    MonitoringFacts,
    RedeliveryFacts,
    Setting,
    SnapshotFacts,
    Took,
    TransformFacts,
    follows,
    write_settings,
)
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import WatermarkSettings

MS, SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
GOOD = Facts(
    server="Google Pub/Sub",
    at=at(0),
    snapshot=SnapshotFacts([(at(1), at(1))] * 3, [0 * MS, 40 * MS], [0 * MS], [-5 * MS]),
    delay=DelayFacts(1000, 0, SECOND, Took(1000, 30 * MS, 90 * MS, 210 * MS)),
    redelivery=RedeliveryFacts(0 * MS),
    filter=FilterFacts(10, 10, 0),
    transform=TransformFacts(10, 10, 0, 0),
    monitoring=MonitoringFacts(at(0), 90, at(-30), at(32), 100 * SECOND),
    clock=ClockFacts(-2 * MS, 8 * MS),
    calls={},
    charged_bytes=1 << 40,
    took=SECOND,
    swept=[],
)


def settled(facts: Facts) -> dict[str, str]:
    return {one.key: one.value for one in follows(facts, Settings())}


def with_readings(*errors: timedelta, **more: object) -> Facts:
    assert isinstance(GOOD.snapshot, SnapshotFacts)
    shown = [(at(1.5) + error, at(1.5)) for error in errors]
    return replace(GOOD, snapshot=replace(GOOD.snapshot, **{"shown": shown, **more}))  # type: ignore[arg-type]


def test_a_slack_is_three_times_the_largest_delay_rounded_up_whichever_way_it_was_seen() -> None:
    assert isinstance(GOOD.delay, DelayFacts)
    slow = replace(GOOD, delay=replace(GOOD.delay, took=replace(GOOD.delay.took, largest=701 * MS)))
    assert settled(slow) == {"slack": "2.2s"}
    assert settled(with_readings(0 * MS, passed=[900 * MS])) == {"slack": "2.7s"}


def test_a_larger_slack_that_is_set_is_not_lowered() -> None:
    for slack, raised in ((30_000 * MS, []), (0 * MS, ["slack"])):
        set_by_hand = Settings(watermark=WatermarkSettings(slack=slack))
        assert [one.key for one in follows(GOOD, set_by_hand)] == raised


BROUGHT = Path(__file__).parents[3] / "tidemark.toml"
FOUND = [Setting("watermark", "max_lag", "1s", ""), Setting("watermark", "slack", "2.1s", "")]
BY_HAND = """\
# ours
[watermark]
  band="5s"
# why nine: ask Kim
  slack = '9s'# nine

[pubsub] # no emulator
project = "of-ours"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tidemark.toml"


def values_in(file: Path) -> tuple[float, float]:
    policy = load_settings(file).policy
    assert policy.max_lag is not None
    return policy.max_lag.total_seconds(), policy.base_slack.total_seconds()


def test_in_the_brought_file_two_values_change_and_no_comment_moves(file: Path) -> None:
    shutil.copy(BROUGHT, file)
    written = write_settings(file, FOUND)
    assert [(one.setting.key, one.before) for one in written] == [("max_lag", ""), ("slack", "")]
    before, after = BROUGHT.read_text().splitlines(), file.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].rstrip() for _, new in changed] == ['slack = "2.1s"', 'max_lag = "1s"']
    assert all(old[old.index("#") :] == new[new.index("#") :] for old, new in changed)
    assert all(old.index("#") == new.index("#") for old, new in changed)
    assert values_in(file) == (1.0, 2.1)
    assert write_settings(file, FOUND) == []


def test_a_file_written_by_hand_keeps_what_its_writer_wrote_and_a_link_stays_one(file: Path) -> None:
    target = file.with_name("target.toml")
    target.write_text(BY_HAND)
    target.chmod(0o640)
    file.symlink_to(target)
    written = write_settings(file, FOUND)
    assert [(one.setting.key, one.before) for one in written] == [("max_lag", None), ("slack", "9s")]
    text = file.read_text()
    assert [line for line in BY_HAND.splitlines() if "slack" not in line and line not in text] == []
    assert "# nine" in text
    assert values_in(file) == (1.0, 2.1)
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.is_symlink()
    assert sorted(os.listdir(file.parent)) == ["target.toml", file.name]


@pytest.mark.parametrize(
    "text", ["", "watermark = { band = '5s' } # short", "watermark.band = '5s'", "[watermark]\r\n"]
)
def test_a_file_of_another_form_means_the_same_and_the_settings(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    write_settings(file, FOUND)
    assert values_in(file) == (1.0, 2.1)
    assert file.read_bytes().decode().startswith(text[:9])


@pytest.mark.parametrize("content", [b"[watermark", b"\xff"])
def test_a_file_that_cannot_be_changed_stays_as_it_is(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"could not be written: .*nothing in it was changed"):
        write_settings(file, FOUND)
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == [file.name]
