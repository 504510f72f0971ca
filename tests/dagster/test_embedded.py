"""Two pipelines and somebody else's definitions in one project."""

import runpy
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_file
from dagster.components.testing import create_defs_folder_sandbox

import tidemark
import tidemark.dagster as td
from tidemark.pipeline.orchestrator.names import PIPELINE, pipeline_tag

ROOT = Path(__file__).resolve().parents[2]
TOML = """
[pubsub]
topic = "{topic}"
base_subscription = "{topic}-base"
tracking_subscription = "{topic}-tracking"

[lake]
uri = "file:{topic}-lake"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for topic in ("heartbeats", "orders"):
        (tmp_path / f"{topic}.toml").write_text(TOML.format(topic=topic))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine() -> dg.Definitions:
    """A project whose names are those that tidemark has where it is alone."""

    @dg.asset
    def watermark() -> None: ...

    @dg.asset_check(asset=watermark)
    def late() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.op(required_resource_keys={"spark"})
    def look_and_compute_again() -> None: ...

    @dg.job
    def repair() -> None:
        look_and_compute_again()

    @dg.sensor(job=repair)
    def tracking() -> None: ...

    return dg.Definitions(
        assets=[watermark],
        asset_checks=[late],
        jobs=[repair],
        sensors=[tracking],
        resources={"spark": dg.ResourceDefinition.hardcoded_resource("mine"), "lake": 1, "pubsub": 2},
        executor=dg.multiprocess_executor,
    )


def test_two_pipelines_and_a_project_with_the_same_names_are_one_project(folder: Path, mine: dg.Definitions) -> None:
    heartbeats, orders = td.pipeline("heartbeats.toml"), td.pipeline(folder / "orders.toml", name="orders")
    merged = dg.Definitions.merge(mine, heartbeats.definitions(), orders.definitions())
    dg.Definitions.validate_loadable(merged)
    for pipeline, name in ((heartbeats, "tidemark"), (orders, "orders")):
        assert pipeline.name == name
        assert pipeline.diffs == dg.AssetKey([name, "heartbeat_diffs"])
        assert {pipeline.diffs, pipeline.heartbeats, pipeline.watermark} <= set(merged.resolve_all_asset_keys())
        for job in ("compute_windows", "ingest", "repair", "requeue", "housekeeping", "tune_watermark"):
            resolved = merged.resolve_job_def(f"{name}_{job}")
            assert resolved.tags[PIPELINE] == pipeline_tag(pipeline.settings.lake.uri)
            assert resolved.executor_def is dg.in_process_executor
        tracking = merged.resolve_sensor_def(f"{name}_tracking")
        assert {target.job_name for target in tracking.targets} == {f"{name}_compute_windows"}
    assert merged.executor is dg.multiprocess_executor
    assert merged.resolve_job_def("repair").executor_def is dg.multiprocess_executor
    ours = [definitions.assets or [] for definitions in (heartbeats.definitions(), orders.definitions())]
    assert len(list(merged.resolve_all_asset_keys())) == 1 + sum(map(len, ours))


def test_the_example_project_loads_and_its_asset_reads_closed_windows() -> None:
    file = ROOT / "examples" / "own_project" / "definitions.py"
    (target,) = loadable_targets_from_python_file(str(file))
    dg.Definitions.validate_loadable(target.target_definition)
    project = runpy.run_path(str(file))
    gaps = project["gaps"]
    keys = project["heartbeats"].windows.get_first_partition_key()
    result = dg.materialize([gaps], partition_key=keys)
    assert result.asset_materializations_for_node("gaps")[0].metadata["rows"].value == 0
    assert project["orders"].diffs in set(project["defs"].resolve_all_asset_keys())


def test_a_component_is_a_pipeline_that_yaml_names(folder: Path) -> None:
    attributes = {"config": str(folder / "orders.toml"), "name": "orders", "topic": "theirs/orders"}
    topic = dg.AssetKey(["theirs", "orders"])
    with create_defs_folder_sandbox(project_name="somebodys") as sandbox:
        place = sandbox.scaffold_component(
            tidemark.Pipeline, defs_yaml_contents={"type": "tidemark.Pipeline", "attributes": attributes}
        )
        with sandbox.load_component_and_build_defs(defs_path=place) as (component, loaded):
            assert isinstance(component, tidemark.Pipeline)
            same = td.pipeline("orders.toml", name="orders", topic=topic)
            assert set(loaded.resolve_all_asset_keys()) == set(same.definitions().resolve_all_asset_keys())
            assert loaded.resolve_job_def("orders_ingest").tags[PIPELINE] == pipeline_tag(same.settings.lake.uri)
