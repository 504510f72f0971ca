"""Where the demonstration's lake may be."""

import os
from pathlib import Path

from tests.cli.command import said_here


def test_a_lake_in_another_folder_is_refused_with_what_names_one(tmp_path: Path) -> None:
    said = said_here(tmp_path, ("demo", "--folder", str(tmp_path / "demo"), "--lake", "file:/elsewhere"), os.environ)
    assert said.code == 2
    assert "for a lake on disk, use --folder" in " ".join(said.err.replace("│", " ").split())
    assert not (tmp_path / "demo").exists()
