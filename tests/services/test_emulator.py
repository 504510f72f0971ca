"""Finding the emulator and Java."""

from pathlib import Path

import pytest

from pipeline.errors import InvalidSettings, ToolMissing
from pipeline.services import emulator
from pipeline.services.emulator import emulator_command, find_emulator_jar, find_java, is_loopback, java_version


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on its path; its folder of programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(emulator, "SDK_PLACES", ())
    return tmp_path


def java_saying(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_a_missing_emulator_is_said_with_how_to_get_it(bare_machine: Path) -> None:
    with pytest.raises(ToolMissing, match="google-cloud-cli-pubsub-emulator"):
        find_emulator_jar()


def test_the_newest_jar_of_the_sdk_that_gcloud_belongs_to_is_taken(bare_machine: Path, tmp_path: Path) -> None:
    sdk = tmp_path / "sdk"
    lib = sdk / "platform/pubsub-emulator/lib"
    for folder in (lib, sdk / "bin"):
        folder.mkdir(parents=True)
    for version in ("0.8.9", "0.8.20"):
        (lib / f"cloud-pubsub-emulator-{version}-all.jar").touch()
    (sdk / "bin/gcloud").touch(mode=0o755)
    (bare_machine / "gcloud").symlink_to(sdk / "bin/gcloud")
    assert find_emulator_jar().name == "cloud-pubsub-emulator-0.8.20-all.jar"


def test_a_missing_java_is_said_with_how_to_get_it(bare_machine: Path) -> None:
    with pytest.raises(ToolMissing, match="install Java 17 or newer"):
        find_java()


def test_an_older_java_is_refused_with_what_it_is(bare_machine: Path) -> None:
    java_saying(bare_machine, "11.0.2")
    with pytest.raises(ToolMissing, match=r'version "11\.0\.2".*install Java 17'):
        find_java()


def test_a_java_that_does_not_run_is_refused(bare_machine: Path) -> None:
    java_saying(bare_machine, "17.0.1").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ToolMissing, match="does not run"):
        find_java()


def test_java_home_comes_before_the_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_saying(bare_machine, "11.0.2")
    chosen = java_saying(bare_machine / "jdk/bin", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "jdk"))
    assert find_java() == chosen


@pytest.mark.parametrize(
    ("said", "version"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ("", None)]
)
def test_the_feature_release_is_read(said: str, version: int | None) -> None:
    assert java_version(said) == version


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "", "::"])  # noqa: S104  what is refused
def test_the_emulator_is_not_started_where_others_could_reach_it(host: str) -> None:
    with pytest.raises(InvalidSettings, match="on loopback"):
        emulator_command(host, 8085)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)
