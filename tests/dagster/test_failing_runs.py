"""Runs that fail are spoken of by `tidemark status` and `tidemark explain`, from the lake alone."""

import json
import os
from pathlib import Path

import dagster as dg

from tests.cli.command import said_here
from tests.dagster.test_diffs_asset import WINDOWS, Materializing
from tests.official_emulator import free_port
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


def test_status_and_explain_say_that_runs_fail_since_when_and_why(tmp_path: Path) -> None:
    remote = f"sc://localhost:{free_port()}"
    lake = Materializing(tmp_path, SparkSettings(remote=remote))
    (tmp_path / "tidemark.toml").write_text(SETTINGS.format(lake=lake.folder))

    def said(*arguments: str) -> str:
        done = said_here(tmp_path, arguments, {"PATH": os.environ["PATH"]})
        assert done.code == 0, done.err
        return done.out

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
