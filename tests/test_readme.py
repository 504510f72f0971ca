"""The README and the documents say what is there."""

import re
from pathlib import Path

import pytest

from pipeline.cli.app import app
from pipeline.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_every_setting_is_in_the_readme_as_it_is_in_the_file() -> None:
    assert (ROOT / "tidemark.toml").read_text() in README


def test_every_setting_is_explained_in_the_documents() -> None:
    explained = (ROOT / "docs" / "settings.md").read_text()
    for section, field in Settings.model_fields.items():
        for key in getattr(field.annotation, "model_fields", {}):
            named = (f"`{key}`", f"`{section}.{key}`", f"`[{section}.{key}]`")
            assert any(name in explained for name in named), f"{section}.{key}"


def test_make_lists_every_command_that_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"demo", "test", "up", "setup"} <= named <= targets


def test_the_command_line_has_every_command_that_the_documents_name() -> None:
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    for document in DOCUMENTS:
        for name in re.findall(r"(?:`|bin/)tidemark ([a-z]+)", document.read_text()):
            assert name in known, f"{document.name}: tidemark {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target
