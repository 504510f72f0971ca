"""`tidemark up` before it starts anything, `up --status` and `up --stop`, as a person meets them; and `tidemark
doctor`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.command import TIDEMARK, Said, said_by_the_program, said_here
from tests.cli.test_cli import Place
from tests.lake.test_log_codec import of_a_later_version
from tests.official_emulator import free_port
from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import STATE_FILE, Noted, Supervisor, noted_file
from tidemark.pipeline.cli.start.up import NOT_RUNNING
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor import checks
from tidemark.pipeline.doctor.checks import at_once
from tidemark.pipeline.doctor.finding import Level
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.lake.owner import NAME
from tidemark.pipeline.machine import own_process, process_of
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.spark import java

CLOCK = SystemClock()


class House:
    """A folder with settings, whose lake is shared."""

    def __init__(self, folder: Path, topic: str = "heartbeats") -> None:
        self.folder = folder
        folder.mkdir()
        web, code = free_port(), free_port()
        (folder / "tidemark.toml").write_text(
            f'[pubsub]\ntopic = "{topic}"\nemulator_host = "127.0.0.1:{free_port()}"\nemulator = "local"\n'
            f'[lake]\nuri = "file:../lake"\n[spark]\nremote = ""\n[spark.config]\n"spark.master" = "local[1]"\n'
            f"[dagster]\nweb_port = {web}\ncode_port = {code}\n"
        )
        self.settings = load_settings(folder / "tidemark.toml")
        self.state = folder / ".tidemark"

    def variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "COLUMNS": "200", "NO_COLOR": "1"}

    def program(self, *arguments: str) -> Said:
        return said_by_the_program(self.folder, arguments, self.variables())

    def here(self, *arguments: str) -> Said:
        return said_here(self.folder, arguments, self.variables())

    def own(self) -> None:
        """Have this process run the pipeline, as `tidemark up` states it."""
        Ownership(self.settings, CLOCK, up=self.folder / "tidemark.toml").state()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "one and a half")


def started_nothing(said: Said) -> bool:
    return said.code == 1 and not re.search("starting|stopp", said.out)


def test_a_second_up_on_the_lake_is_refused_before_anything_is_started(house: House, tmp_path: Path) -> None:
    house.own()
    note = (tmp_path / "lake" / NAME).read_bytes()
    second = House(tmp_path / "two")
    said = second.program("up")
    assert started_nothing(said)
    assert said.err.startswith(f"tidemark: already running as process {os.getpid()} on ")
    assert f"by `tidemark up` in {house.state}" in said.err
    assert f"run `tidemark --config '{house.folder}/tidemark.toml' up --stop`" in said.err
    other = House(tmp_path / "three", topic="orders")
    refused = other.here("up")
    assert started_nothing(refused)
    assert refused.err.startswith(f"tidemark: another pipeline writes file:{tmp_path}/lake: tidemark (topic projects/")
    assert (tmp_path / "lake" / NAME).read_bytes() == note
    assert not (second.state / STATE_FILE).exists()
    diagnosed = json.loads(other.here("doctor", "--json").out)
    (broken,) = [one["said"] for one in diagnosed["findings"] if "another pipeline" in one["said"]]
    assert diagnosed["broken"] >= 1
    assert broken.partition(", last heard ")[0] in refused.err


def test_a_reader_that_closed_the_pipe_does_not_end_up(house: House) -> None:
    house.own()
    reader, writer = os.pipe()
    os.close(reader)
    command = [TIDEMARK, "up"]
    with os.fdopen(writer) as pipe:
        done = subprocess.run(command, cwd=house.folder, env=house.variables(), stdout=pipe, stderr=-1, check=False)
    assert b"already running as process" in done.stderr, "it went on until it was refused"


def test_status_says_whether_it_runs_and_who_owns_the_lake(house: House) -> None:
    idle = house.here("up", "--status")
    assert (idle.code, idle.err) == (NOT_RUNNING, "")
    assert f"not running in {house.state}" in idle.out
    assert f"lake file:{house.settings.lake.folder}: no pipeline has written this lake yet" in idle.out
    assert not house.state.exists(), "to ask makes nothing"
    house.own()
    Supervisor(house.state, CLOCK, print).take_over()
    facts = json.loads(house.here("up", "--status", "--json").out)
    assert facts["lake"]["owner"]["process"] == os.getpid()
    assert facts["lake"]["owner"]["topic"] == house.settings.pubsub.topic_path
    assert facts["ui"] == f"http://127.0.0.1:{house.settings.dagster.web_port}"
    assert (facts["running"], facts["services"]) == (False, []), "this process asks, so it is not the one that runs"
    (house.folder.parent / "lake" / NAME).write_text("{")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        noted_file(house.state).write(Noted(process_of(other.pid)))
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)
        said = house.here("up", "--status").out
        other.kill()
    assert f"paused as process {other.pid}" in said
    assert "owner.json is damaged" in said


def test_stop_without_anything_to_stop_is_well_and_ends_what_a_killed_one_has_stated(house: House) -> None:
    assert house.here("up", "--stop").code == 0
    house.own()
    file = house.folder.parent / "lake" / NAME
    said = json.loads(file.read_text())
    said["process"]["started"] -= 100
    file.write_text(json.dumps(said))
    house.state.mkdir()
    noted_file(house.state).write(Noted(services={"Spark Connect": replace(own_process(), started=0.0)}))
    stopped = house.here("up", "--stop")
    assert (stopped.code, stopped.err) == (0, "")
    assert "stopped the services that an earlier `tidemark up` left running" in stopped.out
    assert json.loads(file.read_text())["ended"] is not None
    assert not (house.state / STATE_FILE).exists()


@pytest.mark.parametrize("options", [("--json",), ("--stop", "--json"), ("--stop", "--status")])
def test_options_that_do_not_go_together_are_refused(house: House, options: Sequence[str]) -> None:
    assert house.here("up", *options).code == 2
    assert not house.state.exists()


@pytest.mark.parametrize("which", ["lake", "storage"])
def test_a_full_disk_ends_up_before_anybody_is_asked(house: House, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(house.settings.dagster.storage).mkdir(parents=True)
    full = house.settings.lake.folder if which == "lake" else Path(house.settings.dagster.storage)
    full.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda place: SimpleNamespace(free=1 << 20) if Path(place) == full else usage(place)
    )
    monkeypatch.setattr(checks, "diagnose", lambda *_: pytest.fail("asked the network"))
    broken = [one for one in at_once(house.settings, CLOCK) if one.level is Level.BROKEN]
    setting = "lake.uri" if which == "lake" else "dagster.storage"
    assert [f"free some space, or set {setting}" in one.said for one in broken] == [True]


def test_a_folder_for_its_notes_that_cannot_be_made_is_one_line(house: House) -> None:
    house.state.touch()
    said = house.here("up")
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert "dagster.storage" in line


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
class Examined:
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
def examined(tmp_path: Path, emulator_host: str, monkeypatch: pytest.MonkeyPatch) -> Examined:
    return Examined(tmp_path, emulator_host, monkeypatch)


def test_a_set_up_that_is_well_ends_with_exit_code_0(examined: Examined) -> None:
    examined.provision()
    said = examined.doctor()
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "nothing would break, 0 warnings"
    subjects = [line for line in said.out.splitlines()[:-1] if not line.startswith(" ")]
    assert subjects == ["settings", "Pub/Sub", "permissions", "quotas", "clock", "lake", "versions", "Spark", "Dagster"]
    assert not (examined.folder / "lake").exists()
    assert not (examined.folder / "state").exists()


def nothing_provisioned(examined: Examined) -> None: ...


def no_java(examined: Examined) -> None:
    examined.provision()
    examined.monkeypatch.setattr(java, "_candidates", lambda: iter(()))


def a_newer_lake(examined: Examined) -> None:
    examined.provision()
    examined.place.lake().objects().create(entry_name(0), of_a_later_version({b"tidemark.format": b"2"}))


def an_unknown_setting(examined: Examined) -> None:
    examined.write(pubsub='topik = "heartbeats"')


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nothing_provisioned, ["heartbeats does not exist", "heartbeats-tracking does", "heartbeats-base does"]),
        (no_java, ["Spark needs a Java, and there is no java on the path"]),
        (a_newer_lake, ["this lake was written by tidemark 7.0.0"]),
        (an_unknown_setting, ["there is no such setting; did you mean topic?"]),
    ],
)
def test_what_would_break_is_told(examined: Examined, spoil: Callable[[Examined], None], said: list[str]) -> None:
    spoil(examined)
    broken = examined.broken()
    assert len(broken) == len(said)
    for finding, expected in zip(broken, said, strict=True):
        assert expected in finding


def test_up_says_what_is_wrong_at_once_and_nothing_else(examined: Examined) -> None:
    settings = examined.place.settings
    assert at_once(settings, SystemClock()) == []
    examined.monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    (found,) = at_once(settings, SystemClock())
    assert (found.level, found.said[:18]) == (Level.BROKEN, "Spark needs a Java")
