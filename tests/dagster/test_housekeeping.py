"""The hourly job on a real instance: the lake's chores, and Dagster's own events down to what is kept; and Dagster's
private parts, by which it keeps them."""

import ast
import re
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tidemark.assets.catalog import HEARTBEATS, WATERMARK, key_of
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs import housekeeping
from tidemark.assets.jobs.housekeeping import HOUSEKEEPING, prune_events, prune_runs
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.scheduler.runs import Runs
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import DagsterPartMissing
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, HousekeepingSettings, LakeSettings
from tidemark.resources import private
from tidemark.resources.run_launcher import WatchedRunLauncher

NOW = SystemClock().now()
OURS = Settings(lake=LakeSettings(uri="file:/lake"))
OLD = timedelta(days=3)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty tables of SQLite, which take seconds to make."""
    home = tmp_path_factory.mktemp("storage")
    with dg.DagsterInstance.local_temp(str(home)):
        return home


@pytest.fixture
def instance(tmp_path: Path, storage: Path) -> Iterator[dg.DagsterInstance]:
    """With SQLite, a file a run, as dagster.yaml has it."""
    with dg.DagsterInstance.local_temp(str(shutil.copytree(storage, tmp_path / "dagster"))) as found:
        yield found


def settings_in(folder: Path, **keep: object) -> Settings:
    return Settings(
        lake=LakeSettings(uri=f"file:{folder}/lake"), housekeeping=HousekeepingSettings.model_validate(keep)
    )


def run(settings: Settings, instance: dg.DagsterInstance, *, dry_run: bool = False) -> dg.ExecuteInProcessResult:
    job = build_definitions(settings).resolve_job_def(HOUSEKEEPING)
    config = {"ops": {"keep_house": {"config": {"dry_run": dry_run}}}}
    return job.execute_in_process(instance=instance, raise_on_error=False, run_config=config)


def make_older(instance: dg.DagsterInstance, by: timedelta) -> None:
    """As if all that is stored had been stored so long before."""
    for path in Path(instance.root_directory).rglob("*.db"):
        with sqlite3.connect(path) as database:
            tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
            seconds = f"-{by.total_seconds()} seconds"
            for table, column in (
                ("event_logs", "timestamp"),
                ("asset_check_executions", "evaluation_event_timestamp"),
                ("runs", "update_timestamp"),
            ):
                if table in tables:
                    database.execute(
                        f"update {table} set {column} = strftime('%Y-%m-%d %H:%M:%f', {column}, '{seconds}')"
                    )
        database.close()


def tick(instance: dg.DagsterInstance, number: int) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization(WATERMARK, metadata={"number": number}))
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(asset_key=HEARTBEATS, check_name="late", passed=True, metadata={"number": number})
    )


def old_ticks(instance: dg.DagsterInstance, count: int) -> None:
    for number in range(count):
        tick(instance, number)
    make_older(instance, OLD)


def numbers(instance: dg.DagsterInstance) -> list[object]:
    """The numbers of the watermark's materializations, newest first."""
    found = instance.fetch_materializations(WATERMARK, limit=1000).records
    return [record.asset_materialization.metadata["number"].value for record in found if record.asset_materialization]


def rows_in(instance: dg.DagsterInstance, table: str) -> int:
    total = 0
    for path in Path(instance.root_directory).rglob("*.db"):
        with sqlite3.connect(path) as database:
            if database.execute("select 1 from sqlite_master where name = ?", (table,)).fetchone():
                total += database.execute(f"select count(*) from {table}").fetchone()[0]
        database.close()
    return int(total)


def test_old_events_go_and_the_newest_stay(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ROWS_AT_ONCE", 4)  # several transactions
    old_ticks(instance, 5)
    assert prune_events(instance, OURS, NOW - timedelta(days=4)) == {"events": 0, "evaluations": 0}
    for number in (5, 6):
        tick(instance, number)
    before = rows_in(instance, "event_logs")
    assert prune_events(instance, OURS, NOW - timedelta(days=2)) == {"events": 10, "evaluations": 5}
    assert numbers(instance) == [6, 5]
    assert rows_in(instance, "event_logs") == before - 2 * 10, "in the index, and beside it"
    assert rows_in(instance, "asset_check_executions") == 2
    make_older(instance, OLD)
    assert prune_events(instance, OURS, NOW) == {"events": 2, "evaluations": 1}
    assert numbers(instance) == [6]
    assert instance.get_latest_materialization_event(WATERMARK) is not None
    tick(instance, 7)
    assert numbers(instance) == [7, 6]


def test_of_other_teams_and_pipelines_assets_checks_and_runs_nothing_is_deleted(instance: dg.DagsterInstance) -> None:
    orders = OURS.model_copy(update={"dagster": DagsterSettings(name="orders")})
    foreign = (dg.AssetKey(["their", "daily"]), key_of(orders, WATERMARK))

    @dg.asset
    def daily() -> None:
        pass

    for number in range(3):
        tick(instance, number)
        for key in foreign:
            instance.report_runless_asset_event(dg.AssetMaterialization(key))
            instance.report_runless_asset_event(dg.AssetObservation(key))
            instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, check_name="late", passed=True))
    dg.materialize([daily], instance=instance)
    make_older(instance, OLD)
    before = {table: rows_in(instance, table) for table in ("event_logs", "asset_check_executions", "runs")}
    assert prune_events(instance, OURS, NOW) == {"events": 2 * 2, "evaluations": 2}
    assert prune_runs(Runs(instance, OURS), NOW, but="") == 0
    deleted = {table: count - rows_in(instance, table) for table, count in before.items()}
    assert deleted == {"event_logs": 2 * 2 * 2, "asset_check_executions": 2, "runs": 0}  # SQLite has events twice
    for key in foreign:
        assert len(instance.fetch_materializations(key, limit=10).records) == 3
        assert len(instance.fetch_observations(key, limit=10).records) == 3
        check = dg.AssetCheckKey(key, "late")
        assert len(instance.event_log_storage.get_asset_check_execution_history(check, limit=10)) == 3
    assert prune_events(instance, orders, NOW) == {"events": 3 * 2, "evaluations": 2}
    assert len(instance.fetch_materializations(foreign[1], limit=10).records) == 1


def test_events_that_a_run_reports_of_its_windows_stay_with_the_run(instance: dg.DagsterInstance) -> None:
    partitions = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=partitions)
    def diffs() -> None:
        pass

    dg.materialize([diffs], partition_key="a", instance=instance, tags=tags_of(OURS))
    make_older(instance, OLD)
    prune_events(instance, OURS, NOW)
    assert instance.get_materialized_partitions(diffs.key) == {"a"}
    runs_of_ours = Runs(instance, OURS)
    assert prune_runs(runs_of_ours, NOW - timedelta(days=4), but="") == 0
    dg.materialize([diffs], partition_key="b", instance=instance, tags=tags_of(OURS))
    runs = [run.run_id for run in instance.get_runs()]
    assert prune_runs(runs_of_ours, NOW - timedelta(days=2), but="") == 1
    assert [run.run_id for run in instance.get_runs()] == runs[:1]
    assert instance.get_materialized_partitions(diffs.key) == {"b"}
    assert not list(Path(instance.root_directory).rglob(f"{runs[1]}*"))


def test_a_dry_run_leaves_dagster_alone_and_a_failed_chore_fails(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    old_ticks(instance, 3)
    settings = settings_in(tmp_path)
    assert run(settings, instance, dry_run=True).success
    assert len(numbers(instance)) == 3
    damaged = tmp_path / "lake" / entry_name(0)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"damaged")
    result = run(settings, instance)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert entry_name(0) in str(failure.step_failure_data.user_failure_data.description)
    assert numbers(instance) == [2], "the others were done"


def test_runs_are_kept_unless_they_are_asked_not_to_be(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run(settings_in(tmp_path), instance)
    make_older(instance, OLD)
    run(settings_in(tmp_path), instance)
    assert len(instance.get_runs()) == 2
    result = run(settings_in(tmp_path, dagster_runs="1d"), instance)
    assert result.success
    assert instance.get_runs()[0].run_id == result.run_id
    assert len(instance.get_runs()) == 2


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
    patch.setitem(private.PARTS, name, private.PrivatePart(part.module, f"{part.name}Moved", part.without))


def test_without_its_part_the_launcher_launches_and_does_not_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WatchedRunLauncher().supports_check_run_worker_health
    moved(monkeypatch, "CanCancelExecutionRequest")
    assert not WatchedRunLauncher().supports_check_run_worker_health
    with pytest.raises(DagsterPartMissing) as missing:
        _ = private.CanCancelExecutionRequest
    assert isinstance(missing.value.__cause__, AttributeError), "why, such as a file that hides a module"


def test_a_missing_name_is_said(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_ticks(instance, 3)
    with monkeypatch.context() as patch:
        moved(patch, "run_connection")
        result = run(settings_in(tmp_path), instance)
    assert result.success
    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    said = str(output.step_output_data.metadata["Dagster/events/skipped"].value)
    assert said.startswith(f"Dagster {dg.__version__} has no ")
    assert "SqlEventLogStorage.run_connectionMoved, so housekeeping does not delete Dagster's events of ticks" in said
    assert numbers(instance) == [2, 1, 0]
    assert prune_events(instance, OURS, NOW) == {"events": 4, "evaluations": 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("event_logs rename column asset_key to other", "column event_logs.asset_key"),
        ("asset_event_tags rename to other", "table asset_event_tags"),
    ],
)
def test_events_stay_where_a_table_or_column_is_missing(change: str, named: str, instance: dg.DagsterInstance) -> None:
    old_ticks(instance, 3)
    index = Path(instance.root_directory) / "history" / "runs" / "index.db"
    with sqlite3.connect(index) as database:
        database.execute(f"alter table {change}")
    with pytest.raises(
        DagsterPartMissing, match=re.escape(f"has no {named} in its event log, so housekeeping does not delete")
    ):
        prune_events(instance, OURS, NOW)
    assert rows_in(instance, "event_logs") == 2 * 6
    database.close()
