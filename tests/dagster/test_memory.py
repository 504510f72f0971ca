"""What keeps the memory of Dagster's processes flat."""

import sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from alembic.script import ScriptDirectory

from tests.programs import ended
from tidemark.resources import memory
from tidemark.resources.memory import STORAGES, load_revisions_once

COLLECTED = """
import gc
import tidemark.assets.location
print(gc.get_freeze_count(), len(gc.get_objects()))
"""
"""Prints how many objects the garbage collector leaves out in a process with the definitions, and how many not."""


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[ScriptDirectory]:
    """The revisions that are loaded during a test."""
    found, init = list[ScriptDirectory](), ScriptDirectory.__init__

    def noted(self: ScriptDirectory, *arguments: Any, **named: Any) -> None:
        found.append(self)
        init(self, *arguments, **named)

    monkeypatch.setattr(ScriptDirectory, "__init__", noted)
    monkeypatch.setattr(ScriptDirectory, "from_config", ScriptDirectory.from_config)  # restored after the test
    return found


def test_a_process_that_opens_dagsters_storage_often_loads_its_revisions_once(
    tmp_path: Path, loaded: list[ScriptDirectory]
) -> None:
    load_revisions_once()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        opened = instance.get_ref()
    for _ in range(3):
        with dg.DagsterInstance.from_ref(opened) as instance:
            instance.get_runs(limit=1)
    assert 0 < len(loaded) <= STORAGES


def test_definitions_and_modules_are_left_out_of_garbage_collection() -> None:
    done = ended([sys.executable, "-W", "ignore", "-c", COLLECTED])
    assert done.returncode == 0, done.stderr
    left_out, collected = map(int, done.stdout.split())
    assert collected < left_out / 100


def test_free_memory_is_returned_to_the_system_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    returned, is_done = list[int](), Event()

    def trim(left_over: int) -> None:
        returned.append(left_over)
        if len(returned) == 2:
            is_done.set()
            raise SystemExit  # ends the thread

    monkeypatch.setattr(memory, "RETURNED_EVERY_SECONDS", 0)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=trim))
    memory.return_free_memory()
    assert is_done.wait(60)
    assert returned == [0, 0]
