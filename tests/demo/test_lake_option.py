"""Where the demonstration and its lake may be."""

import os
from pathlib import Path

import pytest

from tests.cli.command import said_here


@pytest.mark.parametrize("where", [("--lake", "file:/elsewhere"), ("--lake", "gs://"), ("--lake-endpoint", "http://a")])
def test_a_lake_in_another_folder_is_refused_with_what_names_one(tmp_path: Path, where: tuple[str, str]) -> None:
    said = said_here(tmp_path, ("demo", "--folder", str(tmp_path / "demo"), *where), os.environ)
    assert said.code == 2
    assert "for a lake on disk, use --folder" in " ".join(said.err.replace("│", " ").split())
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_files_of_others_is_refused_and_keeps_them(tmp_path: Path) -> None:
    (kept := tmp_path / "tidemark.toml").write_text("# Every setting of tidemark.\n")
    said = said_here(tmp_path, ("demo", "--folder", "."), os.environ)
    assert (said.code, "has files that are not a demonstration's" in said.err, kept.exists()) == (1, True, True)


@pytest.mark.parametrize("name", ["TIDEMARK_LAKE__URI", "tidemark_pubsub__topic", "PUBSUB_EMULATOR_HOST"])
def test_a_variable_that_overrides_its_settings_is_refused_by_name(tmp_path: Path, name: str) -> None:
    said = said_here(tmp_path, ("demo", "--folder", "demo"), {**os.environ, name: "file:prod"})
    assert (said.code, f"which {name} would override" in said.err, [*tmp_path.iterdir()]) == (1, True, [])
