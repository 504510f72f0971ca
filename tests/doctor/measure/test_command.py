"""`tidemark doctor --measure` as a person runs it: what it prints and writes, and what is left when it is killed."""

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TIDEMARK, said_here
from tests.doctor.measure.deviations import QUICK, IgnoresFilters, Service, service
from tidemark.pipeline.cli.start import doctor as measured
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.doctor.measure.experiments import measure
from tidemark.pipeline.doctor.measure.facts import Facts
from tidemark.pipeline.settings_sections import PubSubSettings

SECONDS = 60


class Later(SystemClock):
    """Two hours from now."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure", partial(measure, plan=QUICK))


def config(folder: Path, emulator: str | None, project: str) -> Path:
    file = folder / "tidemark.toml"
    file.write_text(
        f'[pubsub]\nproject = "{project}"\nemulator = "local"\nemulator_host = "{emulator or ""}"  # here\n'
    )
    return file


def doctor(folder: Path, *options: str) -> Any:
    return said_here(folder, ("doctor", "--measure", *options), {})


@pytest.mark.usefixtures("quick")
def test_it_prints_the_table_the_calls_and_what_follows(tmp_path: Path) -> None:
    with service(IgnoresFilters) as given:
        file = config(tmp_path, given.pubsub.emulator_host, given.pubsub.project)
        before = file.read_text()
        said = doctor(tmp_path, "--write")
    lines = said.out.splitlines()
    assert (said.code, said.err) == (1, "")
    assert any(line.split()[:2] == ["a", "filter"] and line.rstrip().endswith("differs") for line in lines)
    assert "warning a filter: leave pubsub.filter empty: both subscriptions must get the same messages" in lines
    assert any(line.split()[:1] == ["create_snapshot"] for line in lines)
    assert lines[lines.index("[watermark]") + 1].startswith('slack = "')
    assert "is an emulator, and says nothing of the service" in lines[-1]
    assert file.read_text() == before


@pytest.mark.usefixtures("quick")
def test_json_has_the_facts_the_rows_and_the_settings(tmp_path: Path) -> None:
    with service() as given:
        config(tmp_path, given.pubsub.emulator_host, given.pubsub.project)
        said = doctor(tmp_path, "--json")
    found = json.loads(said.out)
    assert (said.code, said.err) == (0, "")
    assert [len(found["rows"]), [one["key"] for one in found["settings"]]] == [10, ["slack"]]
    assert found["facts"]["delay"]["messages"] == QUICK.messages
    assert found["written"] == []


def test_on_the_service_it_writes_the_settings_and_says_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service() as given:
        file = config(tmp_path, None, given.pubsub.project)

        def as_if_the_service(settings: PubSubSettings, clock: Clock, tell: Any) -> Facts:
            emulator = {"emulator_host": given.pubsub.emulator_host}
            return measure(settings.model_copy(update=emulator), clock, QUICK, tell)

        monkeypatch.setattr(measured, "measure", as_if_the_service)
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
