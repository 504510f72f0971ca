"""What keeps the memory of Dagster's processes flat."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from tidemark.resources.memory import STORAGES, load_revisions_once


def test_dagsters_storage_loads_its_revisions_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, init = list[ScriptDirectory](), ScriptDirectory.__init__

    def noted(self: ScriptDirectory, *arguments: Any, **named: Any) -> None:
        loaded.append(self)
        init(self, *arguments, **named)

    monkeypatch.setattr(ScriptDirectory, "__init__", noted)
    as_it_was = ScriptDirectory.from_config.__wrapped__  # type: ignore[attr-defined]  # before the conftest
    monkeypatch.setattr(ScriptDirectory, "from_config", as_it_was)
    load_revisions_once()
    for _ in range(3):
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            instance.get_runs(limit=1)
    assert 0 < len(loaded) <= STORAGES
    theirs = Config()
    for folder in (tmp_path, tmp_path.parent):
        theirs.set_main_option("script_location", str(folder))
        assert ScriptDirectory.from_config(theirs).dir == str(folder)
