"""Tables of one's own in Dagster: requested when their windows are due, each for itself, and repaired."""

import json
from pathlib import Path

import dagster as dg
import pytest

import tidemark
import tidemark.dagster as td
from tests.dagster.house import Ticking
from tests.dagster.test_diffs_asset import CLASSIC, MINUTE, START, WINDOWS, Materializing, failure_of
from tidemark.assets.definitions import build_definitions
from tidemark.assets.repair import REPAIR
from tidemark.pipeline.services.dagster_names import PIPELINE, RANGE_END, RANGE_START
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, TableSettings
from tidemark.pipeline.spark.table_definition import TableDefinition

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector

COUNTS = "SELECT window, stream_id, count(*) AS heartbeats FROM {heartbeats} GROUP BY window, stream_id"
BROKEN = "SELECT window, no_such_column FROM {heartbeats}"


def with_tables(settings: Settings, folder: Path, **texts: str) -> Settings:
    """The settings with tables of SQL, whose rows are told apart by their stream."""
    tables = {}
    for name, text in texts.items():
        (folder / f"{name}.sql").write_text(text)
        tables[name] = TableSettings(sql=str(folder / f"{name}.sql"), key=["stream_id"])
    return settings.model_copy(update={"tables": tables})


def run(house: Materializing, instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """What the daemon makes of a request."""
    job = build_definitions(house.settings).resolve_job_def(str(request.job_name))
    return job.execute_in_process(instance=instance, tags=request.tags, raise_on_error=False)


def asked(ticking: Ticking) -> dict[str, tuple[str, str]]:
    """The first and the last window of each run that the sensor requests, by job."""
    return {
        str(request.job_name): (request.tags[RANGE_START], request.tags[RANGE_END])
        for request in ticking.tick("tables").run_requests or ()
    }


def test_a_table_follows_the_windows_of_heartbeat_diffs_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    house.settings = with_tables(house.settings, tmp_path, counts=COUNTS, broken=BROKEN)
    windows = house.settings.windows.model_copy(update={"corrections": True})
    house.settings = house.settings.model_copy(update={"windows": windows})
    with dg.DagsterInstance.ephemeral() as instance:
        ticking = Ticking(house.settings, instance)
        assert asked(ticking) == {}, "no window of heartbeat_diffs is computed"
        assert house.run(WINDOWS[0], WINDOWS[1], instance).success
        requests = {str(request.job_name): request for request in ticking.tick("tables").run_requests or ()}
        assert requests.keys() == {"compute_counts", "compute_broken"}
        result = run(house, instance, requests["compute_counts"])
        assert result.success
        (checked,) = result.get_asset_check_evaluations()
        assert (checked.check_name, checked.passed) == ("key_is_unique", True)
        said = "the table broken cannot be computed: AnalysisException"
        assert said in failure_of(run(house, instance, requests["compute_broken"]))
        assert asked(ticking) == {}, "counts is computed, and broken waits for a while"
        # From here on without it: on a slow machine its pause is over before the test is.
        house.settings = with_tables(house.settings, tmp_path, counts=COUNTS)
        ticking = Ticking(house.settings, instance)

        assert house.run(WINDOWS[2], WINDOWS[2], instance).success
        assert asked(ticking) == {"compute_counts": (WINDOWS[2], WINDOWS[2])}
        for request in ticking.tick("tables").run_requests or ():
            assert run(house, instance, request).success
        own = house.lake.own_table("counts")
        rows = own.read(WINDOWS).sort_by([("window", "ascending"), ("stream_id", "ascending")]).to_pylist()
        assert sum(row["heartbeats"] for row in rows) == house.rows().num_rows
        assert asked(ticking) == {}

        house.land([("late", START + 1.5 * MINUTE)])
        assert house.run(WINDOWS[1], WINDOWS[2], instance).success  # as the check of missed heartbeats requests it
        assert asked(ticking) == {"compute_counts": (WINDOWS[1], WINDOWS[2])}
        for request in ticking.tick("tables").run_requests or ():
            assert run(house, instance, request).success

        table = house.lake.corrections().table.current()
        assert table is not None
        noted = [row for row in table.to_pyarrow_table().to_pylist() if row["table"] == "counts"]
        assert [(row["change"], json.loads(row["key"])) for row in noted] == [("added", {"stream_id": "late"})]

        (path, *_) = (house.folder / "tables/counts/runs").rglob(f"window={WINDOWS[0]}/*.parquet")
        path.write_bytes(b"no Parquet")
        repair = build_definitions(house.settings).resolve_job_def(REPAIR).execute_in_process(instance=instance)
        assert repair.success
        assert asked(Ticking(house.settings, instance)) == {"compute_counts": (WINDOWS[0], WINDOWS[0])}


def test_a_key_that_is_not_unique_is_a_warning(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    house.settings = with_tables(house.settings, tmp_path, counts="SELECT window, stream_id FROM {heartbeats}")
    with dg.DagsterInstance.ephemeral() as instance:
        tags = {RANGE_START: WINDOWS[0], RANGE_END: WINDOWS[0]}
        result = run(house, instance, dg.RunRequest(job_name="compute_counts", tags=tags))
        (checked,) = result.get_asset_check_evaluations()
    assert (checked.passed, checked.severity) == (False, dg.AssetCheckSeverity.WARN)
    rows = house.lake.own_table("counts").read(WINDOWS[:1])
    streams = len(set(rows["stream_id"].to_pylist()))
    assert checked.metadata["rows"].value == len(rows) - streams > 0


@tidemark.windowed(key="stream_id", window="1h")
def hourly(heartbeats, windows):  # type: ignore[no-untyped-def]
    """Heartbeats an hour."""
    return heartbeats.groupBy("window", "stream_id").count()


def test_a_project_of_ones_own_gives_its_functions_and_all_names_have_the_pipelines_prefix(tmp_path: Path) -> None:
    settings = Materializing(tmp_path, CLASSIC).settings
    settings = settings.model_copy(update={"dagster": DagsterSettings(name="orders")})
    assert isinstance(hourly, TableDefinition)
    definitions = td.Pipeline(settings, (hourly,)).definitions()
    graph = definitions.resolve_asset_graph()
    node = graph.get(dg.AssetKey(["orders", "hourly"]))
    assert node.parent_keys == {dg.AssetKey(["orders", "heartbeats"]), dg.AssetKey(["orders", "heartbeat_diffs"])}
    assert "Heartbeats an hour." in str(node.description)
    partitions = node.partitions_def
    assert isinstance(partitions, dg.TimeWindowPartitionsDefinition)
    assert partitions.cron_schedule == "0 */1 * * *"
    assert definitions.resolve_job_def("orders_compute_hourly").tags[PIPELINE] == settings.lake.uri
    assert definitions.resolve_sensor_def("orders_tables").name == "orders_tables"


def test_a_pipeline_without_tables_of_its_own_has_no_sensor_for_them(tmp_path: Path) -> None:
    definitions = build_definitions(Materializing(tmp_path, CLASSIC).settings)
    assert "tables" not in {sensor.name for sensor in definitions.sensors or ()}
