"""`tidemark doctor` as a person runs it: a set-up that is well, and some that are not."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.command import Said
from tests.cli.test_cli import Place
from tests.lake.test_log_codec import of_a_later_version
from tests.official_emulator import free_port
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.checks import at_once
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.spark import java

CONFIG = """\
[pubsub]
project = "{project}"
emulator_host = "{emulator}"
{pubsub}

[lake]
uri = "file:lake"

[spark]
remote = "sc://localhost:{port}"

[dagster]
storage = "state/dagster"
"""


@dataclass
class House:
    """Settings of its own, and ways to spoil them before doctor looks."""

    folder: Path
    emulator: str
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.project = f"doctor-{uuid.uuid4().hex[:8]}"
        self.write()

    @property
    def place(self) -> Place:
        return Place(self.folder)

    def write(self, pubsub: str = "") -> None:
        text = CONFIG.format(project=self.project, emulator=self.emulator, pubsub=pubsub, port=free_port())
        (self.folder / "tidemark.toml").write_text(text)

    def provision(self) -> None:
        assert self.place.tidemark("provision").code == 0

    def doctor(self, *options: str) -> Said:
        return self.place.tidemark("doctor", *options)

    def broken(self) -> list[str]:
        """What it finds broken, as JSON says it. The exit code says that there is something."""
        said = self.doctor("--json")
        findings = json.loads(said.out)
        broken = [one["said"] for one in findings["findings"] if one["level"] == "broken"]
        assert (said.code, findings["broken"]) == (1 if broken else 0, len(broken))
        return broken


@pytest.fixture
def house(tmp_path: Path, emulator_host: str, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, emulator_host, monkeypatch)


def test_a_set_up_that_is_well_ends_with_exit_code_0(house: House) -> None:
    house.provision()
    said = house.doctor()
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "nothing would break, 0 warnings"
    subjects = [line for line in said.out.splitlines()[:-1] if not line.startswith(" ")]
    assert subjects == ["settings", "Pub/Sub", "permissions", "quotas", "clock", "lake", "versions", "Spark", "Dagster"]
    assert not (house.folder / "lake").exists()
    assert not (house.folder / "state").exists()


def nothing_provisioned(house: House) -> None: ...


def no_java(house: House) -> None:
    house.provision()
    house.monkeypatch.setattr(java, "_candidates", lambda: iter(()))


def a_newer_lake(house: House) -> None:
    house.provision()
    house.place.lake().objects().create(entry_name(0), of_a_later_version({b"tidemark.format": b"2"}))


def an_unknown_setting(house: House) -> None:
    house.write(pubsub='topik = "heartbeats"')


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nothing_provisioned, ["heartbeats does not exist", "heartbeats-tracking does", "heartbeats-base does"]),
        (no_java, ["Spark needs a Java, and there is no java on the path"]),
        (a_newer_lake, ["this lake was written by tidemark 7.0.0"]),
        (an_unknown_setting, ["there is no such setting; did you mean topic?"]),
    ],
)
def test_a_set_up_that_would_break_is_told_with_what_to_do(
    house: House, spoil: Callable[[House], None], said: list[str]
) -> None:
    spoil(house)
    broken = house.broken()
    assert len(broken) == len(said)
    for finding, expected in zip(broken, said, strict=True):
        assert expected in finding


def test_up_says_what_is_wrong_at_once_and_nothing_else(house: House) -> None:
    settings = house.place.settings
    assert at_once(settings, SystemClock()) == []
    house.monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    (found,) = at_once(settings, SystemClock())
    assert (found.level, found.said[:18]) == (Level.BROKEN, "Spark needs a Java")
