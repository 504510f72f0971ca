"""The README and the documents say what the program does."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tidemark.pipeline import errors
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.durations import parse_duration
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import TableSettings
from tidemark.pipeline.settings_types import Effect

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SETTINGS_PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IN_A_SECTION_OF_ITS_OWN = {("message", "fields")}
"""Settings that are tables, with a heading of their own in the page."""


def defaults_in_the_page() -> dict[tuple[str, str], str]:
    """Each setting that has a row in a table of the page, with the default that the row says."""
    written = {}
    sections: list[str] = []
    for line in SETTINGS_PAGE.splitlines():
        if line.startswith("#"):
            sections = re.findall(r"`\[([a-z_]+)(?:\.NAME)?\]`", line)
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if sections and cells and re.fullmatch(r"`[a-z_]+`", cells[0]):
            for column, section in enumerate(sections, start=1):
                if cells[column]:  # else the section does not have it
                    written[section, cells[0].strip("`")] = cells[column].strip("`")
    return written


def defaults_in_the_code() -> Iterator[tuple[tuple[str, str], Any]]:
    tree = Settings()
    for section in Settings.model_fields:
        values = getattr(tree, section) if section != "tables" else TableSettings.model_construct()
        for key in type(values).model_fields:
            yield (section, key.rstrip("_")), getattr(values, key)  # pydantic has a method `schema`


def is_written_as(value: Any, written: str) -> bool:
    """Whether a page's text of a default is this value, in the form that a settings file would have."""
    if value is None or value == {} or value == "":
        return written == "empty"
    if isinstance(value, bool):
        return written == str(value).lower()
    if hasattr(value, "total_seconds"):
        return parse_duration(written) == value
    if hasattr(value, "isoformat"):
        return written == value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, list):
        return written == str(value).replace("'", '"')
    return written == str(value)


def test_the_page_of_settings_names_every_setting_and_no_other() -> None:
    assert set(defaults_in_the_page()) == {name for name, _ in defaults_in_the_code()} - IN_A_SECTION_OF_ITS_OWN
    for section, key in IN_A_SECTION_OF_ITS_OWN:
        assert f"### `[{section}.{key}]`" in SETTINGS_PAGE


def test_the_page_of_settings_has_every_default_as_it_is() -> None:
    written = defaults_in_the_page()
    wrong = {
        name: (written[name], value)
        for name, value in defaults_in_the_code()
        if name in written and not is_written_as(value, written[name])
    }
    assert not wrong


def test_the_page_of_settings_says_what_a_change_of_each_does() -> None:
    """In the last cell of each row, as the setting's declaration has it."""
    tree = {name: one.annotation for name, one in Settings.model_fields.items()} | {"tables": TableSettings}
    section, wrong = None, []
    for line in SETTINGS_PAGE.splitlines():
        if line.startswith("#"):
            section = next(iter(re.findall(r"`\[([a-z_]+)(?:\.NAME)?\]`", line)), None)
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if section and cells and (key := re.fullmatch(r"`([a-z_]+)`", cells[0])):
            kind: Any = tree[section]
            name = next(name for name, one in kind.model_fields.items() if (one.alias or name) == key[1])
            if cells[-1] != kind.effect_of(name):
                wrong.append((section, key[1], cells[-1], kind.effect_of(name).value))
    assert not wrong
    legend = SETTINGS_PAGE.partition("## When a pipeline has a lake")[2].partition("\n## ")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", legend, re.M)[1:] == [effect.value for effect in Effect]


def test_make_lists_every_command_that_the_documents_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "up", "setup", "docs"} <= set(re.findall(r"`?make ([a-z-]+)", README))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, document.name


def test_a_pull_request_must_pass_the_tests_that_the_readme_names() -> None:
    assert "make test " in README
    assert re.search(r"\bmake test\b", (ROOT / ".ci" / "run").read_text())


def test_the_command_line_has_every_command_that_the_documents_name() -> None:
    known = {command.name for command in app.registered_commands}
    for document in DOCUMENTS:
        for name in re.findall(r"(?:`|bin/)tidemark ([a-z]+)", document.read_text()):
            assert name in known, f"{document.name}: tidemark {name}"


def test_every_error_has_a_line_that_says_what_to_do() -> None:
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    raised = {name for name, error in vars(errors).items() if isinstance(error, type)}
    assert {name for name in raised if f"| `{name}`" not in page} == {"TidemarkError"}


def test_the_api_page_names_what_is_there() -> None:
    names = re.findall(r"^::: (\S+)\.(\w+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert names
    for module, name in names:
        assert getattr(import_module(module), name).__doc__


def test_every_decision_is_listed() -> None:
    pages = {page.name for page in (ROOT / "docs" / "inside" / "decisions").glob("[0-9]*.md")}
    listed = (ROOT / "docs" / "inside" / "decisions" / "README.md").read_text()
    assert pages == set(re.findall(r"\]\(([^)]+)\)", listed))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_document_names_are_there(document: Path) -> None:
    for named in re.findall(r"`((?:assets|pipeline|resources|tests|tools)/[\w/.]*)`", document.read_text()):
        assert (ROOT / named).exists(), named
