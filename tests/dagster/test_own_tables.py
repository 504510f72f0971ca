"""Tables of one's own in Dagster: requested when their windows are due, each for itself, and repaired."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

import tidemark
import tidemark.dagster as td
from tests.dagster.house import Ticking
from tests.dagster.test_diffs_asset import CLASSIC, MINUTE, START, WINDOWS, Materializing, failure_of
from tests.dagster.test_repair import known, told
from tests.pubsub.builders import raising
from tidemark.assets.checks import CHECKS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.by_window import WindowsAsset
from tidemark.assets.jobs.repair import REPAIR
from tidemark.assets.own_tables import own_table_definitions
from tidemark.assets.scheduler import turns
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.table_definition import TableDefinition, read_table
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.tables.windowed import OwnTable
from tidemark.pipeline.orchestrator.names import PIPELINE, op_of, pipeline_tag
from tidemark.pipeline.quality.failing import read_failing_tables
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, TableSettings

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector

COUNTS = "SELECT window, stream_id, count(*) AS heartbeats FROM {heartbeats} GROUP BY window, stream_id"
BROKEN = "SELECT window, no_such_column FROM {heartbeats}"

FUNCTION = "import tidemark\n\n@tidemark.windowed({options})\ndef python(heartbeats, windows):\n    return {rows}\n"
ROWS = 'heartbeats.groupBy("window", "stream_id").count()'


@pytest.fixture(autouse=True)
def _no_pause_ends_while_a_test_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FIRST_REST", turns.LONGEST_REST)


def with_tables(settings: Settings, folder: Path, **texts: str) -> Settings:
    """The settings with tables of SQL, whose rows are told apart by their stream."""
    tables = {}
    for name, text in texts.items():
        (folder / f"{name}.sql").write_text(text)
        tables[name] = TableSettings(file=str(folder / f"{name}.sql"), key=["stream_id"])
    return settings.model_copy(update={"tables": tables})


def run(house: Materializing, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """What the daemon makes of a request."""
    job = build_definitions(house.settings).resolve_job_def(str(request.job_name))
    return job.execute_in_process(
        instance=house.instance, run_config=request.run_config, tags=request.tags, raise_on_error=False
    )


def asked(ticking: Ticking) -> dict[str, list[str]]:
    """The windows of each run that the sensor requests, by job."""
    return {
        str(request.job_name): request.run_config["ops"][op_of(str(request.job_name))]["config"]["windows"]
        for request in ticking.tick("tables").run_requests or ()
    }


def test_a_table_follows_the_windows_and_one_that_fails_stops_no_other(house: Materializing, tmp_path: Path) -> None:
    of_lists = COUNTS.replace("stream_id", "array(stream_id) AS stream_id", 1)
    house.settings = with_tables(house.settings, tmp_path, counts=of_lists, broken=BROKEN)
    windows = house.settings.windows.model_copy(update={"corrections": True})
    house.settings = house.settings.model_copy(update={"windows": windows})
    ticking = Ticking(house.settings, house.instance)
    assert asked(ticking) == {}, "no window of heartbeat_diffs is computed"
    assert house.run(WINDOWS[0], WINDOWS[1]).success
    requests = {str(request.job_name): request for request in ticking.tick("tables").run_requests or ()}
    assert requests.keys() == {"compute_counts", "compute_broken"}
    result = run(house, requests["compute_counts"])
    assert result.success
    (checked,) = result.get_asset_check_evaluations()
    assert (checked.check_name, checked.passed) == ("key_is_unique", True)
    said = "the table broken cannot be computed: AnalysisException"
    assert said in failure_of(run(house, requests["compute_broken"]))
    assert asked(ticking) == {}, "counts is computed, and broken waits for a while"

    assert house.run(WINDOWS[2], WINDOWS[2]).success
    assert asked(ticking) == {"compute_counts": [WINDOWS[2]]}
    for request in ticking.tick("tables").run_requests or ():
        assert run(house, request).success
    own = house.lake.own_table("counts")
    assert sum(row["heartbeats"] for row in own.read(WINDOWS).to_pylist()) == house.rows().num_rows
    assert asked(ticking) == {}

    house.land([("late", START + 1.5 * MINUTE)])
    assert house.run(WINDOWS[1], WINDOWS[2]).success  # as the check of missed heartbeats requests it
    assert asked(ticking) == {"compute_counts": [f"{WINDOWS[1]}..{WINDOWS[2]}"]}
    for request in ticking.tick("tables").run_requests or ():
        assert run(house, request).success

    table = house.lake.corrections().table.in_place()
    noted = [row for row in table.to_pyarrow_table().to_pylist() if row["table"] == "counts"]
    assert [(row["change"], json.loads(row["key"])) for row in noted] == [("added", {"stream_id": ["late"]})]

    (path, *_) = (house.folder / "tables/counts/runs").rglob(f"window={WINDOWS[0]}/*.parquet")
    path.write_bytes(b"no Parquet")
    repair = build_definitions(house.settings).resolve_job_def(REPAIR).execute_in_process(instance=house.instance)
    assert repair.success
    assert asked(Ticking(house.settings, house.instance)) == {"compute_counts": [WINDOWS[0]]}


class Live:
    """A pipeline with a table of SQL, `sql`, and one of Python, `python`, whose code server is never started again."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, lake: Path, **texts: str) -> None:
        """The lake is a copy of one whose windows are computed."""
        self.house = Materializing(folder, CLASSIC, instance, copied_from=lake)
        self.folder, self.instance = folder, instance
        tables = dict[str, TableSettings]()
        for kind, text in texts.items():
            self.write(kind, text)
            key = ["stream_id"] if kind == "sql" else []
            tables[kind] = TableSettings(file=str(self.file(kind)), **({"key": key} if key else {}))
        self.settings = self.house.settings = self.house.settings.model_copy(update={"tables": tables})
        self.ticking = Ticking(self.settings, instance)
        self.loaded = build_definitions(self.settings)

    def file(self, table: str) -> Path:
        return self.folder / f"table.{'sql' if table == 'sql' else 'py'}"

    def write(self, table: str, text: str) -> None:
        self.file(table).write_text(text)

    def definition(self, table: str) -> TableDefinition:
        """The table as somebody finds it who reads its file now."""
        return read_table(self.settings, table)

    def runs(self) -> list[dg.ExecuteInProcessResult]:
        """What a tick requests, computed by the definitions that were loaded at the beginning."""
        return [
            self.loaded.resolve_job_def(str(request.job_name)).execute_in_process(
                instance=self.instance, run_config=request.run_config, tags=request.tags, raise_on_error=False
            )
            for request in self.ticking.tick("tables").run_requests or ()
        ]

    def fails(self) -> str:
        """What the one run that a tick requests fails with."""
        (result,) = self.runs()
        assert not result.success
        return failure_of(result)

    def skipped(self) -> str:
        """Why a tick requests nothing."""
        tick = self.ticking.tick("tables")
        assert not tick.run_requests
        return tick.skip_message or ""


Lives = Callable[..., Live]


@pytest.fixture
def lives(tmp_path: Path, instance: dg.DagsterInstance, computed: Path) -> Lives:
    """A pipeline whose tables have these texts."""
    return partial(Live, tmp_path, instance, computed)


def test_a_file_that_cannot_be_used_fails_the_run_and_the_sensor_says_so(lives: Lives) -> None:
    live = lives(python=FUNCTION.format(options="", rows=ROWS))
    file = live.file("python")
    unusable = (
        (None, f"tables.python: {file} cannot be read: "),
        ("def python(:", f"tables.python: importing {file} failed: SyntaxError: "),
        ("raise SystemExit(3)", f"tables.python: importing {file} failed: SystemExit: 3"),
        ("x = 1", f"tables.python: {file} has no function python decorated with @tidemark.windowed"),
    )
    for failures, (text, said) in enumerate(unusable, 1):
        file.unlink(missing_ok=True) if text is None else file.write_text(text)
        assert live.fails().startswith(said)
        reasons = live.skipped()
        assert "python: consecutive failed runs: 1" in reasons
        assert said in reasons
        (failing,) = read_failing_tables(live.house.lake, SystemClock().now())
        assert (failing.table, failing.failures) == ("python", failures)
        assert said in failing.reason
    assert live.house.lake.own_table("python").made() == {}
    live.write("python", FUNCTION.format(options="", rows=ROWS))
    (result,) = live.runs()
    assert result.success, "no restart, and no pause"
    (observed,) = told(result)
    assert observed.metadata["version"].value == live.definition("python").version
    assert read_failing_tables(live.house.lake, SystemClock().now()) == []


def test_failing_windows_are_tried_one_by_one(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FIRST_REST", timedelta(0))
    bad = f"SELECT window, stream_id, IF(window = '{WINDOWS[1]}', raise_error('no'), 1) AS one FROM {{heartbeats}}"
    live = lives(sql=bad)
    for _ in range(turns.SUSPECT):
        assert asked(live.ticking) == {"compute_sql": [f"{WINDOWS[0]}..{WINDOWS[2]}"]}
        assert "no" in live.fails()
    assert asked(live.ticking) == {"compute_sql": [WINDOWS[2]]}
    (result,) = live.runs()
    assert result.success
    assert asked(live.ticking) == {"compute_sql": [WINDOWS[1]]}
    live.write("sql", COUNTS)
    assert asked(live.ticking) == {"compute_sql": [f"{WINDOWS[0]}..{WINDOWS[1]}"]}


def test_what_a_run_of_a_table_committed_before_it_died_is_materialized_once(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, listings = lives(sql=COUNTS), list[str]()
    live.house.decide(START + timedelta(minutes=40))
    lost, listed = own_table_definitions(live.settings, SystemClock(), [live.definition("sql")])[2], OwnTable.runs
    monkeypatch.setattr(OwnTable, "runs", lambda table: listings.append(table.name) or listed(table))
    ticked = partial(known, live.house, lost, dg.AssetKey("sql"))
    assert live.house.run(WINDOWS[0], "2026-11-21T05-23Z").success
    assert [result.success for result in live.runs()] == [True]
    assert not live.house.run(WINDOWS[0], "no window").success
    assert (len(ticked()[0]), listings) == (1, []), "no run of the table failed"
    assert live.house.run(WINDOWS[0], "2026-11-21T05-23Z").success
    monkeypatch.setattr(WindowsAsset, "reports", raising(RuntimeError("killed")))
    assert [result.success for result in live.runs()] == [False]
    monkeypatch.undo()
    ((by_us, ours),) = ticked()
    assert (by_us.metadata, by_us.tags) == (ours.metadata, ours.tags)


def test_a_file_that_dagster_cannot_load_with_the_pipeline_stops_nobody_else(lives: Lives) -> None:
    live = lives(sql=COUNTS, python="def python(:")  # its key is not known
    by_table = {result.job_def.name: result for result in live.runs()}
    assert by_table["compute_sql"].success
    assert "SyntaxError" in failure_of(by_table["compute_python"])
    live.write("python", FUNCTION.format(options="key='stream_id'", rows=ROWS))
    (result,) = live.runs()
    assert result.success, "no restart"


def test_what_dagster_must_load_again_fails_the_run_before_it_writes(lives: Lives) -> None:
    def text(options: str) -> str:
        return FUNCTION.format(options=options, rows=ROWS)

    live = lives(python=text("key='stream_id'"))

    def must_load_again(options: str, said: str) -> None:
        live.write("python", text(options))
        failure = live.fails()
        assert failure.startswith(said)
        assert "Restart `tidemark up`; in your own Dagster, restart the code server" in failure
        assert not (live.house.folder / "tables").exists()
        assert said in live.skipped()

    def load_again() -> None:
        live.ticking.restart()
        live.loaded = build_definitions(live.settings)

    must_load_again("", "the table python has no key now, but had one when Dagster loaded")
    must_load_again("window='5m'", "the table python has windows of 5m now, but had windows of 1m when Dagster loaded")
    live.write("python", text(""))
    load_again()
    must_load_again("key='stream_id'", "the table python has a key now, but had none when Dagster loaded")
    load_again()
    (result,) = live.runs()
    assert result.success, "a failure before the restart does not count after it"


def test_the_next_run_has_what_has_changed_in_the_file_and_windows_stay(lives: Lives) -> None:
    live = lives(sql=COUNTS)
    assert [result.success for result in live.runs()] == [True]
    before = live.definition("sql").version
    live.write("sql", "SELECT window, stream_id, 1 AS beats FROM {heartbeats}")
    assert live.skipped() == "every closed window is computed"
    live.house.land([("late", START + 1.5 * MINUTE)])
    assert live.house.run(WINDOWS[1], WINDOWS[1]).success
    (result,) = live.runs()
    made, own = live.house.lake.own_table("sql").made(), live.house.lake.own_table("sql")
    assert made[WINDOWS[1]].version == live.definition("sql").version != before
    assert made[WINDOWS[0]].version == before
    assert "beats" in own.read(WINDOWS).column_names
    checked = next(iter(result.get_asset_check_evaluations()))
    assert (checked.passed, checked.severity) == (False, dg.AssetCheckSeverity.WARN), "its key is not unique"
    rows = own.read(WINDOWS[1:2])["stream_id"].to_pylist()
    assert checked.metadata["rows"].value == len(rows) - len(set(rows)) > 0


@tidemark.windowed(key="stream_id", window="1h")
def hourly(heartbeats, windows):  # type: ignore[no-untyped-def]
    """Heartbeats an hour."""
    return heartbeats.groupBy("window", "stream_id").count()


def test_a_project_gives_its_functions_and_all_names_have_the_pipelines_prefix(house: Materializing) -> None:
    settings = house.settings
    settings = settings.model_copy(update={"dagster": DagsterSettings(name="orders")})
    definitions = td.Pipeline(settings, (hourly,)).definitions()
    node = definitions.resolve_asset_graph().get(dg.AssetKey(["orders", "hourly"]))
    assert node.parent_keys == {dg.AssetKey(["orders", "heartbeats"]), dg.AssetKey(["orders", "heartbeat_diffs"])}
    assert "Heartbeats an hour." in str(node.description)
    assert node.partitions_def.cron_schedule == "0 */1 * * *"
    assert definitions.resolve_job_def("orders_compute_hourly").tags[PIPELINE] == pipeline_tag(settings.lake.uri)
    assert definitions.resolve_sensor_def("orders_tables").name == "orders_tables"


def test_a_table_whose_job_or_op_would_share_a_name_is_refused(house: Materializing, tmp_path: Path) -> None:
    settings = house.settings
    for beside in ("mine_by_name", "compute_mine", "compute_mine_by_name"):
        settings = with_tables(settings, tmp_path, mine=COUNTS, **{beside: COUNTS})
        with pytest.raises(InvalidSettings, match="cannot have this name beside the table"):
            build_definitions(settings)
    for check in CHECKS:
        op = replace(hourly, name=f"{check.asset.path[-1]}_{check.name}")
        with pytest.raises(InvalidSettings, match="no name that tidemark uses itself"):
            td.Pipeline(Settings(), (op,)).definitions()
    prefixed = settings.model_copy(update={"dagster": DagsterSettings(name="orders")})
    assert build_definitions(prefixed).resolve_job_def("orders_compute_mine")
