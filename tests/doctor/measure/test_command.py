"""`tidemark doctor --measure` as a person runs it: what it prints and writes, and what is left when it is killed."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TIDEMARK, said_here
from tests.doctor.measure.deviations import QUICK, Service, service
from tests.doctor.measure.test_facts import GOOD
from tidemark.pipeline.cli.start import doctor as measured
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.measure.experiments import measure
from tidemark.pipeline.doctor.measure.facts import FilterFacts, Took

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


def test_it_prints_the_table_the_calls_and_what_follows_or_the_same_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "removed what a killed measurement had left behind: left" in lines
    assert lines[lines.index("[watermark]") + 1].startswith('slack = "')
    assert "is an emulator, so the results do not apply" in lines[-1]
    assert file.read_text() == before
    found = json.loads(as_json.out)
    assert (as_json.code, as_json.err) == (1, "")
    assert [len(found["rows"]), [one["key"] for one in found["settings"]]] == [10, ["slack"]]
    assert found["facts"]["delay"]["messages"] == 1000
    assert found["written"] == []


def test_on_the_service_it_writes_the_settings_and_says_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_, **__: GOOD)
    file = config(tmp_path, None, "a-project")
    said = doctor(tmp_path, "--write")
    text = file.read_text()
    assert f'slack = "2s" into {file}; it was not set' in said.out
    assert 'slack = "2s"' in text
    assert "# here" in text


def test_where_nothing_answers_or_nothing_may_be_asked_it_says_so(tmp_path: Path) -> None:
    config(tmp_path, "127.0.0.1:9", "a-project")
    said = doctor(tmp_path)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("tidemark: nothing answers at 127.0.0.1:9, so there is nothing to measure")
    said = said_here(tmp_path, ("doctor", "--write"), {})
    assert (said.code, "it only works with --measure" in said.err) == (2, True)


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[tuple[Service, "subprocess.Popen[bytes]"]]:
    """A measurement by the program, once all that it makes is there."""
    with service() as given:
        config(tmp_path, given.pubsub.emulator_host, given.pubsub.project)
        process = subprocess.Popen([TIDEMARK, "doctor", "--measure"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + SECONDS
            while len(given.left()) < 5 and time.monotonic() < until:
                time.sleep(0.05)
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
    assert len(left) >= 5
    foreign = {"name": f"projects/{given.pubsub.project}/topics/orders", "labels": {"tidemark-measure": "1"}}
    given.model.create_topic(type(given.model.list_topics()[0])(**foreign))
    assert measure(given.pubsub, SystemClock(), QUICK).swept == []
    assert left <= set(given.left())
    assert set(measure(given.pubsub, Later(), QUICK).swept) == left
    assert given.left() == [foreign["name"]]
    given.model.delete_topic(foreign["name"])
