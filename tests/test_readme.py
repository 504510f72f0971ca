"""The README and the documents say what the program does."""

import re
from importlib import import_module
from pathlib import Path

from pydantic.alias_generators import to_camel

from tidemark.pipeline.cli.app import app
from tidemark.pipeline.ingest.source.pubsub_options import SourceOptions
from tidemark.pipeline.settings import Settings
from tools import reference

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
OF_SPARK = {"spark.archives", "spark.jars", "spark.master"}
"""Settings of Spark's that documents name."""

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_make_lists_every_command_that_the_documents_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "setup", "docs"} <= set(re.findall(r"`?make ([a-z-]+)", README))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, document.name


def test_the_command_line_has_every_command_that_the_documents_name() -> None:
    known = {command.name for command in app.registered_commands}
    for document in DOCUMENTS:
        for name in re.findall(r"(?:`|bin/)tidemark ([a-z]+)", document.read_text()):
            assert name in known, f"{document.name}: tidemark {name}"


def test_settings_that_documents_name_are_there() -> None:
    sections = {name: reference.section_of(field).model_fields for name, field in Settings.model_fields.items()}
    known = {f"{name}.{field.alias or key}" for name, keys in sections.items() for key, field in keys.items()}
    for document in DOCUMENTS:
        named = re.findall(rf"`((?:{'|'.join(sections)})\.(?!py`|yaml`|json`)\w+)(?: = [^`]*)?`", document.read_text())
        assert set(named) <= known | OF_SPARK, document.name


def test_the_page_of_spark_has_each_option_of_the_source() -> None:
    table = (ROOT / "docs" / "how-to" / "spark.md").read_text().partition("| option | default")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {to_camel(field.alias or name) for name, field in SourceOptions.model_fields.items()}


def test_the_reference_is_what_make_reference_writes() -> None:
    for path, text in reference.pages().items():
        assert path.read_text() == text, "run `make reference`"


def test_the_api_page_names_what_is_there() -> None:
    names = re.findall(r"^::: (\S+)\.(\w+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert names
    for module, name in names:
        assert getattr(import_module(module), name).__doc__


def test_links_between_documents_and_files_that_they_name_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
        for named in re.findall(r"`((?:assets|pipeline|resources|tests|tools)/[\w/.]*)`", text):
            assert (ROOT / named).exists(), f"{document.name}: {named}"
