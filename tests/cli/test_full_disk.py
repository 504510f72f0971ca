"""The `tidemark` command when its output goes to a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_a_full_disk_is_one_message_and_no_traceback(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [Path(sys.executable).with_name("tidemark"), *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.startswith("tidemark: ")
    assert ran.stderr.count("\n") == 1
    assert "No space left on device" in ran.stderr


def test_a_closed_output_is_no_failure() -> None:
    command = f"exec {Path(sys.executable).with_name('tidemark')} --version >&-"
    ran = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("prepare", ["ulimit -f 1", "mkdir place; touch place/workspace.yaml"])
def test_init_leaves_no_file_if_it_cannot_write_all_of_them(prepare: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("tidemark")
    command = f"{prepare}; export PYTHONDONTWRITEBYTECODE=1; exec {program} init place --dagster"
    ran = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr[:10]) == (1, "", "tidemark: ")
    assert not (tmp_path / "place" / "tidemark.toml").exists()
