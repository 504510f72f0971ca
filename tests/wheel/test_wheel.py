"""The built wheel, in an environment and a folder of its own, beside somebody else's `assets`."""

import filecmp
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.chaos.house import House
from tests.chaos.plan import Target
from tests.chaos.survival import asked_of, check_that_it_survives, without_settings
from tests.official_emulator import free_port
from tests.programs import ended, install
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings import Settings, load_settings

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SHELL = "/bin/sh"
KILLED = (Target.CODE_SERVER, Target.RUN)
BACKLOG_BEATS = 7
"""The least number of heartbeats of a stream in the four minutes of backlog: it beats every half minute."""

NOT_THEIRS = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
NOT_OURS = 'raise AssertionError("somebody else\'s package was imported")\n'


@dataclass(frozen=True, slots=True)
class Stranger(House):
    """Somebody's folder, and the program that the wheel installed in their environment."""

    @property
    def state(self) -> Path:
        return self.folder / ".tidemark"

    @property
    def lake(self) -> Path:
        return self.state / "lake"

    def command(self, *arguments: str) -> list[str]:
        return [self.tidemark, *arguments]  # in the folder, so that no settings file has to be named

    def environment(self) -> dict[str, str]:
        inherited = super(Stranger, self).environment()
        # Each of many processes would compile what the installer left uncompiled.
        return {name: value for name, value in inherited.items() if name not in NOT_THEIRS}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return ended(self.command(*arguments), self.folder, self.environment(), seconds=300)

    def says(self, *arguments: str) -> str:
        """What a command that succeeds prints."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def stranger(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("project")
    venv.create(environment)
    looked = [SHELL, "tools/check_machine.sh", sys.executable]
    extras = subprocess.run(looked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().split(",")
    with_java = f"{wheel}[java]" if "java" in extras else wheel
    install(environment / "bin" / "python", with_java, "--constraint", ROOT / "constraints.txt")
    give_bytecode(environment)
    (folder / "assets").mkdir()
    for name in ("assets/__init__.py", "resources.py", "pipeline.py"):
        (folder / name).write_text(NOT_OURS)
    return Stranger(folder, Settings(), str(environment / "bin" / "tidemark"), folder)


def give_bytecode(environment: Path) -> None:
    """Put into the environment what this one has compiled of the same modules: its many processes would each compile
    them first. Python looks whether the source has the time that the compiled file names."""
    ours = Path(sysconfig.get_path("purelib"))
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for compiled in ours.rglob("*.pyc"):
        name = compiled.relative_to(ours)
        source = name.parent.parent / f"{name.name.partition('.')[0]}.py"
        is_the_same = (theirs / source).is_file() and filecmp.cmp(ours / source, theirs / source, shallow=False)
        if is_the_same and not (theirs / name).exists():
            shutil.copystat(ours / source, theirs / source)
            (theirs / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, theirs / name)


def with_free_ports(config: str) -> str:
    """The settings file with ports of its own, and windows, a band and leases short enough for a test."""
    changes = {
        "127.0.0.1:8085": f"127.0.0.1:{free_port()}",
        "sc://localhost:15002": f"sc://localhost:{free_port()}",
        "web_port = 3000": f"web_port = {free_port()}",
        "code_port = 4266": f"code_port = {free_port()}",
        'length = "5m"': 'length = "1m"',
        'tick = "10s"': 'tick = "2s"',
        'band = "10s"': 'band = "2s"',
        'idle_timeout = "2m"': 'idle_timeout = "12s"',
    }
    for old, new in changes.items():
        assert old in config
        config = config.replace(old, new)
    return config


def test_it_brings_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"tidemark"}
    brought = {"tidemark.toml", "workspace.yaml", "dagster.yaml", "py.typed", "pipeline/tuning/templates/page.html"}
    assert {f"tidemark/{name}" for name in brought} <= set(names)


def test_the_demonstration_names_the_extra_that_it_needs_before_it_does_anything(stranger: Stranger) -> None:
    refused = stranger.run("demo")
    assert refused.returncode == 1
    assert "pip install 'tidemark-pubsub[demo]'" in refused.stderr
    assert not (stranger.folder / "build").exists()


def test_in_an_empty_folder_it_begins_with_the_shipped_settings_and_overwrites_none(stranger: Stranger) -> None:
    assert "tidemark up" in stranger.says("init")
    assert stranger.config.read_text() == (ROOT / "tidemark.toml").read_text()
    again = stranger.run("init")
    assert (again.returncode, "it was not overwritten" in again.stderr) == (1, True)


@pytest.mark.slow
def test_whatever_is_killed_there_every_row_is_right(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    without_settings(monkeypatch)
    stranger.config.write_text(with_free_ports((ROOT / "tidemark.toml").read_text()))
    house = replace(stranger, settings=load_settings(stranger.config))
    assert house.settings.dagster.storage == str(house.state / "dagster")
    check_that_it_survives(asked_of(stranger.folder, KILLED), house, SystemClock())
    rows = [json.loads(line) for line in stranger.says("diffs", "--stream=stream-00007", "--json").splitlines()]
    assert len(rows) >= BACKLOG_BEATS
    assert {row["missed_heartbeats"] for row in rows if row["previous_event_time"]} == {0}
    assert sorted(path.name for path in stranger.folder.iterdir() if not path.name.startswith(".")) == [
        *("assets", "pipeline.py", "resources.py", "tidemark.toml", "truth.parquet", "up.txt")
    ]
