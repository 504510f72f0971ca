"""Which emulator is started, and where it may be."""

import sys
from pathlib import Path

import pytest

from tests.spark.machine import bare, java_saying
from tidemark.local.services import emulator_choice
from tidemark.local.services.emulator_choice import choose_emulator
from tidemark.pipeline.errors import InvalidSettings


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on its path; its folder of programs."""
    monkeypatch.setattr(emulator_choice, "SDK_PLACES", ())
    return bare(monkeypatch, tmp_path)


def put_sdk(folder: Path) -> Path:
    """The Google Cloud SDK, as far as the emulator is concerned: its jar and a `gcloud`, which is returned."""
    lib = folder / "platform/pubsub-emulator/lib"
    for part in (lib, folder / "bin"):
        part.mkdir(parents=True)
    (lib / "cloud-pubsub-emulator-0.8.20-all.jar").touch()
    gcloud = folder / "bin/gcloud"
    gcloud.touch(mode=0o755)
    return gcloud


def test_where_the_official_emulator_and_a_java_are_found_they_are_taken(bare_machine: Path, tmp_path: Path) -> None:
    (bare_machine / "gcloud").symlink_to(put_sdk(tmp_path / "sdk"))
    java = java_saying(bare_machine, "17.0.1")
    chosen = choose_emulator("auto")
    assert chosen == choose_emulator("official")
    assert chosen.name == "the official Pub/Sub emulator"
    command = chosen.command("127.0.0.1", 8085)
    assert command[0] == str(java)
    assert "-XX:+IgnoreUnrecognizedVMOptions" in command, "macOS has no transparent huge pages"
    assert command[-3].endswith("cloud-pubsub-emulator-0.8.20-all.jar")
    assert command[-2:] == ["--host=127.0.0.1", "--port=8085"]


def test_without_the_official_emulator_our_own_is_taken_and_that_is_reported(bare_machine: Path) -> None:
    java_saying(bare_machine, "17.0.1")
    chosen = choose_emulator("auto")
    assert chosen.name == "tidemark's own Pub/Sub (the official emulator is not on this machine)"
    own = [sys.executable, "-m", "tidemark.pipeline.cli", "pubsub", "--host=127.0.0.1", "--port=8085"]
    assert chosen.command("127.0.0.1", 8085) == own


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "", "::"])  # noqa: S104  what is refused
def test_the_emulator_is_not_started_where_others_could_reach_it(host: str) -> None:
    with pytest.raises(InvalidSettings, match="on loopback"):
        choose_emulator("local").command(host, 8085)
