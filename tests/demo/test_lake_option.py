"""Where the demonstration and its lake may be."""

import os
from pathlib import Path

from tests.cli.command import said_here


def test_a_lake_in_another_folder_is_refused_with_what_names_one(tmp_path: Path) -> None:
    said = said_here(tmp_path, ("demo", "--folder", str(tmp_path / "demo"), "--lake", "file:/elsewhere"), os.environ)
    assert said.code == 2
    assert "for a lake on disk, use --folder" in " ".join(said.err.replace("│", " ").split())
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_files_of_others_is_refused_and_keeps_them(tmp_path: Path) -> None:
    (kept := tmp_path / "tidemark.toml").write_text("# Every setting of tidemark.\n")
    said = said_here(tmp_path, ("demo", "--folder", "."), os.environ)
    assert (said.code, "has files that are not a demonstration's" in said.err, kept.exists()) == (1, True, True)
