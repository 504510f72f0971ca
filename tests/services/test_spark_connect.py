"""The Spark Connect server as a process of its own."""

import os
from pathlib import Path

import pytest

from tests.official_emulator import free_port
from tidemark.local.services.spark_connect import become_the_server
from tidemark.local.services.stack import TOKEN, spark_server
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tidemark.toml"
    file.write_text(f'[spark]\nremote = "sc://localhost:{free_port()}"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(file))
    monkeypatch.chdir(tmp_path)  # it is changed, and put back


def test_it_becomes_the_server_that_tidemark_up_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *what: became.append(what))
    monkeypatch.setenv(TOKEN, "a secret")
    become_the_server(tmp_path / "spark")
    ((program, command, environment),) = became
    expected = spark_server(load_settings(), tmp_path / "spark", {TOKEN: "a secret"})
    assert [program, command] == [expected.command[0], expected.command]
    assert environment.items() >= expected.environment.items()
    assert environment[TOKEN] == "a secret"
    assert not any("a secret" in word for word in command), "any user sees a command"
    assert Path.cwd() == expected.folder == tmp_path / "spark"


def test_without_a_token_that_clients_know_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(InvalidSettings, match=rf"\${TOKEN} is not set: set it to a secret"):
        become_the_server(tmp_path / "spark")
