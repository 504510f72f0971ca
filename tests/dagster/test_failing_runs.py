"""Runs that fail are spoken of by `tidemark status` and `tidemark explain`, from the lake alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from tests.cli.command import said_here
from tests.dagster.test_diffs_asset import WINDOWS, Materializing
from tests.official_emulator import free_port
from tidemark.assets.definitions import build_definitions
from tidemark.pipeline.orchestrator.names import WINDOWS as WINDOWS_TAG
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_sections import SparkSettings

SETTINGS = """\
[windows]
length = "1m"

[message.fields]
temperature = "number"
status = "text"

[lake]
uri = "file:{lake}"
"""


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., str]:
    """What a command says in the folder."""

    def say(*arguments: str) -> str:
        done = said_here(tmp_path, arguments, {"PATH": os.environ["PATH"]})
        assert done.code == 0, done.err
        return done.out

    return say


def test_status_and_explain_say_that_runs_fail_since_when_and_why(tmp_path: Path, said: Callable[..., str]) -> None:
    remote = f"sc://localhost:{free_port()}"
    lake = Materializing(tmp_path, SparkSettings(remote=remote))
    (tmp_path / "tidemark.toml").write_text(SETTINGS.format(lake=lake.folder))

    assert json.loads(said("status", "--json"))["runs_failed"] == 0
    assert json.loads(said("explain", "--json"))["runs_failing"] is None
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            assert not lake.run(WINDOWS[0], WINDOWS[-1], instance).success
    facts = json.loads(said("status", "--json"))
    assert facts["runs_failed"] == 2
    assert (facts["runs_failed_first_window"], facts["runs_failed_last_window"]) == (WINDOWS[0], WINDOWS[-1])
    assert facts["runs_failed_reason"].startswith(f"SparkUnreachable: no Spark Connect server answers at {remote}")
    sentence = f"runs over windows from {WINDOWS[0]} on failed 2 times since {facts['runs_failed_since']}"
    assert sentence in " ".join(said("status").split())
    assert sentence in " ".join(said("explain").split())
    assert sentence in json.loads(said("explain", "--json"))["runs_failing"]


def test_status_and_tables_say_which_tables_of_ones_own_fail_and_which_file_cannot_be_used(
    tmp_path: Path, said: Callable[..., str]
) -> None:
    lake = Materializing(tmp_path, SparkSettings(remote=f"sc://localhost:{free_port()}"))
    sections = '\n[tables.fine]\nfile = "fine.sql"\n\n[tables.gone]\nfile = "gone.sql"\n'
    (tmp_path / "tidemark.toml").write_text(SETTINGS.format(lake=lake.folder) + sections)
    for name in ("fine", "gone"):
        (tmp_path / f"{name}.sql").write_text("SELECT window, count(*) AS n FROM {heartbeats} GROUP BY window")
    of_files = load_settings(tmp_path / "tidemark.toml").tables

    def told() -> dict[str, dict[str, object]]:
        return {table["name"]: table for table in json.loads(said("status", "--all", "--json"))["tables"]}

    assert json.loads(said("status", "--json"))["tables_failing"] == {}
    for table in told().values():
        assert (table["failed_runs"], table["wrong"]) == (0, None)
    (tmp_path / "gone.sql").unlink()
    loaded = build_definitions(lake.settings.model_copy(update={"tables": {"fine": of_files["fine"]}}))
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            tags = {WINDOWS_TAG: f"{WINDOWS[0]}..{WINDOWS[-1]}"}
            job = loaded.resolve_job_def("compute_fine")
            assert not job.execute_in_process(instance=instance, tags=tags, raise_on_error=False).success
    facts = json.loads(said("status", "--json"))
    assert (facts["runs_failed"], facts["tables_failing"]) == (0, {"fine": 2})
    (failure,) = facts["table_failures"]
    assert (failure["table"], failure["failures"]) == ("fine", 2)
    assert failure["reason"].startswith("SparkUnreachable: no Spark Connect server answers at ")
    sentence = f"runs of the table fine failed 2 times since {failure['since']}, last at {failure['last']}: Spark"
    assert sentence in " ".join(said("status").split())
    found = told()
    assert (found["fine"]["failed_runs"], found["fine"]["failed_last"]) == (2, failure["last"])
    assert (found["fine"]["failed_reason"], found["fine"]["wrong"]) == (failure["reason"], None)
    assert f"tables.gone: {of_files['gone'].file} cannot be read" in str(found["gone"]["wrong"])
    assert (found["gone"]["version"], found["gone"]["due"]) == (None, None)
    assert "warning tables.gone: " in said("status", "--all")
