"""Which settings follow from which facts, how they get into the user's own file; and `tidemark doctor --measure` as a
person runs it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TIDEMARK, said_here
from tests.clock import until
from tests.doctor.measure.deviations import QUICK, Service, service
from tests.watermark.builders import at
from tidemark.local.services import own_files
from tidemark.pipeline.cli.start import doctor as measured
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.measure.experiments import measure
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
    shown = [(at(1.5) + error, at(1.5)) for error in errors]
    return replace(GOOD, snapshot=replace(GOOD.snapshot, **{"shown": shown, **more}))  # type: ignore[arg-type]


def test_a_slack_is_three_times_the_largest_delay_rounded_up_whichever_way_it_was_seen() -> None:
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
    return policy.max_lag.total_seconds(), policy.base_slack.total_seconds()


def test_in_the_brought_file_two_values_change_and_no_comment_moves(file: Path) -> None:
    shutil.copy(BROUGHT, file)
    assert [(one.setting.key, one.before) for one in write_settings(file, FOUND)] == [("max_lag", ""), ("slack", "")]
    assert own_files.SECOND_SENTENCE in BROUGHT.read_text(), "which would be untrue with further values"
    before = BROUGHT.read_text().replace(own_files.SECOND_SENTENCE, "").splitlines()
    after = file.read_text().splitlines()
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
    "text", ["", "\ufeff[watermark]", "watermark = { band = '5s' } # short", "watermark.band = '5s'", "[watermark]\r\n"]
)
def test_a_file_of_another_form_means_the_same_and_the_settings(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    write_settings(file, FOUND)
    assert values_in(file) == (1.0, 2.1)
    assert file.read_bytes().decode().startswith(text.removeprefix("\ufeff")[:9])


@pytest.mark.parametrize("content", [b"[watermark", b"\xff"])
def test_a_file_that_cannot_be_changed_stays_as_it_is(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"could not be written: .*nothing in it was changed"):
        write_settings(file, FOUND)
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == [file.name]


SECONDS = 60


class Later(SystemClock):
    """Two hours from now."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


def config(folder: Path, emulator: str | None, project: str) -> Path:
    file = folder / "tidemark.toml"
    file.write_text(
        f'[pubsub]\nproject = "{project}"\nemulator = "local"\nemulator_host = "{emulator or ""}"  # here\n'
    )
    return file


def doctor(folder: Path, *options: str) -> Any:
    return said_here(folder, ("doctor", "--measure", *options), {})


def test_it_prints_table_calls_and_what_follows_also_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(GOOD, filter=FilterFacts(10, 10, 10), calls={"create_snapshot": Took.of([0.1])}, swept=["left"])
    monkeypatch.setattr(measured, "measure", lambda *_, **__: facts)
    with service() as given:
        file = config(tmp_path, given.pubsub.emulator_host, given.pubsub.project)
        before = file.read_text()
        said, as_json = doctor(tmp_path, "--write"), doctor(tmp_path, "--json")
    lines = said.out.splitlines()
    assert (said.code, said.err) == (1, "")
    assert any(line.split()[:2] == ["a", "filter"] and line.rstrip().endswith("differs") for line in lines)
    assert "warning a filter: leave pubsub.filter empty: both subscriptions must get the same messages" in lines
    assert any(line.split()[:1] == ["create_snapshot"] for line in lines)
    assert "removed a leftover of a killed measurement: left" in lines
    assert lines[lines.index("[watermark]") + 1].startswith('slack = "')
    assert "is an emulator, so the results do not apply" in lines[-1]
    assert file.read_text() == before
    found = json.loads(as_json.out)
    assert (as_json.code, as_json.err) == (1, "")
    assert [len(found["rows"]), [one["key"] for one in found["settings"]]] == [10, ["slack"]]
    assert found["facts"]["delay"]["messages"] == 1000
    assert found["written"] == []


def test_on_the_service_it_writes_settings_and_says_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_, **__: GOOD)
    file = config(tmp_path, None, "a-project")
    said = doctor(tmp_path, "--write")
    text = file.read_text()
    assert f'slack = "2s" to {file}; it was not set' in said.out
    assert 'slack = "2s"' in text
    assert "# here" in text


def test_where_nothing_answers_or_nothing_may_be_asked_it_says_so(tmp_path: Path) -> None:
    config(tmp_path, "127.0.0.1:9", "a-project")
    said = doctor(tmp_path)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("tidemark: nothing answers at 127.0.0.1:9, so there is nothing to measure")
    said = said_here(tmp_path, ("doctor", "--write"), {})
    assert (said.code, "it only works with --measure" in said.err) == (2, True)
    assert doctor(tmp_path, "--part", "tracker").code == 2


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[tuple[Service, "subprocess.Popen[bytes]"]]:
    """A measurement by the program, once all that it makes is there."""
    with service() as given:
        config(tmp_path, given.pubsub.emulator_host, given.pubsub.project)
        process = subprocess.Popen([TIDEMARK, "doctor", "--measure"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        try:
            until("five things are there", lambda: len(given.left()) >= 5, SECONDS)
            yield given, process
        finally:
            process.kill()
            process.wait(SECONDS)


@pytest.mark.slow
def test_what_a_killed_run_leaves_is_removed_by_a_later_one_and_by_none_too_soon(
    under_way: tuple[Service, "subprocess.Popen[bytes]"],
) -> None:
    given, process = under_way
    process.kill()
    process.wait(SECONDS)
    left = set(given.left())
    foreign = {"name": f"projects/{given.pubsub.project}/topics/orders", "labels": {"tidemark-measure": "1"}}
    given.model.create_topic(type(given.model.list_topics()[0])(**foreign))
    assert measure(given.pubsub, SystemClock(), QUICK).swept == []
    assert left <= set(given.left())
    assert set(measure(given.pubsub, Later(), QUICK).swept) == left
    assert given.left() == [foreign["name"]]
    given.model.delete_topic(foreign["name"])
