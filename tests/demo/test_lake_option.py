"""Where the demonstration and its lake may be."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.command import said_here
from tests.watermark.builders import at
from tidemark.local.demo.script import IN_THE_FOLDER, DemoFolder
from tidemark.local.demo.shapes.json_shapes import JsonObject
from tidemark.local.services.processes import Supervisor, noted_in
from tidemark.pipeline.clock import SystemClock


@pytest.mark.parametrize(
    "where", ["--lake=file:/elsewhere", "--lake=gs://", "--lake-endpoint=http://a", "--lake=gs://b/../x"]
)
def test_a_lake_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, where: str) -> None:
    said = said_here(tmp_path, ("demo", "--folder", str(tmp_path / "demo"), where), os.environ)
    assert said.code == 2
    says = "a prefix must not contain" if ".." in where else "for a lake on disk, use --folder"
    assert says in " ".join(said.err.replace("│", " ").split())
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_cannot_be_used_is_refused_and_keeps_the_files_of_others(tmp_path: Path) -> None:
    (kept := tmp_path / "tidemark.toml").write_text("# Every setting of tidemark.\n")
    overriding = {"TIDEMARK_LAKE__URI": "file:prod", "tidemark_pubsub__topic": "prod", "PUBSUB_EMULATOR_HOST": "a:1"}
    said = said_here(tmp_path, ("demo", "--folder", "."), {**os.environ, **overriding})
    assert (said.code, "has files that are not a demonstration's" in said.err, kept.exists()) == (1, True, True)
    assert f"its own settings: {', '.join(sorted(overriding))}" in " ".join(said.out.split())
    said = said_here(tmp_path, ("demo", "--folder", "tidemark.toml/demo"), os.environ)
    assert (said.code, f"{kept} is not a folder: name another with --folder" in said.err) == (1, True)


def test_the_current_folder_is_emptied_and_keeps_its_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "file").touch()
    (tmp_path / "truth.parquet").touch()
    monkeypatch.chdir(tmp_path)
    Supervisor(Path(), SystemClock(), print).take_over()
    DemoFolder(Path()).recreate(at(0), IN_THE_FOLDER, JsonObject(), timedelta(minutes=1))
    assert Path.cwd() == tmp_path
    assert sorted(os.listdir()) == ["services.json", "tidemark.toml"]
    assert noted_in(Path()).owner is not None
