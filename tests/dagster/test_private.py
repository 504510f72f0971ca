"""Dagster's private parts: all in one module, all in the Dagster that is installed, and what happens without one."""

import ast
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.test_housekeeping import NOW, OLD, OURS, make_older, numbers, rows_in, run, settings_in, tick
from tests.dagster.test_housekeeping import instance as _instance
from tidemark.assets.jobs.housekeeping import prune_events
from tidemark.pipeline.errors import DagsterPartMissing
from tidemark.resources import private
from tidemark.resources.run_launcher import WatchedRunLauncher

instance = _instance
ROOT = Path(__file__).parents[2]
ONE = ROOT / "resources" / "private.py"
ROOMS = [
    *(ROOT / name for name in ("assets", "resources", "pipeline", "local", "examples")),
    *(ROOT / "src/tidemark").glob("*.py"),
]
SOURCES = [path for room in ROOMS for path in ([room] if room.is_file() else sorted(room.rglob("*.py")))]
OPEN = re.compile(r"dagster|dagster\.components(\.testing)?|dagster_pyspark")
"""Modules that Dagster documents."""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the module of each import in a file, inside of functions as well, and of each module in a text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, str(node.module)
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names if name.name[0] == "_")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, found) for found in re.findall(r"\bdagster\w*(?:\.\w+)*\._[\w.]+", node.value))


def test_no_other_module_uses_a_private_part_of_dagster() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in SOURCES
        for line, module in imported(path)
        if module.partition(".")[0].startswith("dagster") and not OPEN.fullmatch(module) and path != ONE
    ]
    assert elsewhere == []


def test_this_dagster_has_each_part_and_each_is_used() -> None:
    texts = [path.read_text() for path in SOURCES if path != ONE]
    for name in private.PARTS:
        assert getattr(private, name) is not None
        assert name in private.EVENTS or any(re.search(rf"\b{name}\b", text) for text in texts), name


def moved(patch: pytest.MonkeyPatch, name: str) -> None:
    """As if a Dagster had given this part another name."""
    part = private.PARTS[name]
    gone = private.PrivatePart(part.module, f"{part.name}Moved", part.without)
    patch.setitem(private.PARTS, name, gone)


def test_without_a_part_of_its_own_the_launcher_does_not_watch_and_runs_are_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert WatchedRunLauncher().supports_check_run_worker_health
    moved(monkeypatch, "CanCancelExecutionRequest")
    assert not WatchedRunLauncher().supports_check_run_worker_health


def test_housekeeping_leaves_the_events_where_a_name_is_missing_and_says_so(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        tick(instance, number)
    make_older(instance, OLD)
    with monkeypatch.context() as patch:
        moved(patch, "run_connection")
        result = run(settings_in(tmp_path), instance)
    assert result.success
    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    said = str(output.step_output_data.metadata["Dagster/events/skipped"].value)
    assert said.startswith(f"Dagster {dg.__version__} has no ")
    assert "SqlEventLogStorage.run_connectionMoved, so housekeeping leaves Dagster's events of ticks" in said
    assert numbers(instance) == [2, 1, 0]
    assert prune_events(instance, OURS, NOW) == {"events": 4, "evaluations": 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("event_logs rename column asset_key to other", "column event_logs.asset_key"),
        ("asset_event_tags rename to other", "table asset_event_tags"),
    ],
)
def test_housekeeping_leaves_the_events_where_a_table_or_a_column_is_missing(
    change: str, named: str, instance: dg.DagsterInstance
) -> None:
    for number in range(3):
        tick(instance, number)
    make_older(instance, OLD)
    index = Path(instance.root_directory) / "history" / "runs" / "index.db"
    with sqlite3.connect(index) as database:
        database.execute(f"alter table {change}")
    with pytest.raises(DagsterPartMissing, match=re.escape(f"has no {named} in its event log, so housekeeping leaves")):
        prune_events(instance, OURS, NOW)
    assert rows_in(instance, "event_logs") == 2 * 6
    database.close()
