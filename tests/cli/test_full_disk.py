"""The `tidemark` command when its output goes to a full disk."""

from pathlib import Path

import pytest

from tests.cli.command import TIDEMARK
from tests.programs import ended


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_full_disk_is_one_message_and_no_traceback(option: str) -> None:
    ran = ended(["/bin/sh", "-c", f"exec {TIDEMARK} {option} > /dev/full"])
    assert ran.returncode == 1
    assert ran.stderr.startswith("tidemark: ")
    assert ran.stderr.count("\n") == 1
    assert "No space left on device" in ran.stderr


def test_a_closed_output_is_no_failure() -> None:
    ran = ended(["/bin/sh", "-c", f"exec {TIDEMARK} --version >&-"])
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("prepare", ["ulimit -f 1", "mkdir place; touch place/workspace.yaml"])
def test_init_leaves_no_file_if_it_cannot_write_all_of_them(prepare: str, tmp_path: Path) -> None:
    command = f"{prepare}; export PYTHONDONTWRITEBYTECODE=1; exec {TIDEMARK} init place --dagster"
    ran = ended(["/bin/sh", "-c", command], tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr[:10]) == (1, "", "tidemark: ")
    assert not (tmp_path / "place" / "tidemark.toml").exists()
