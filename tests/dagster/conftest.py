"""Dagster warns of what it calls beta, single-run backfills among it, each time that definitions are built. Runs on a
classic Spark session share one."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tests.dagster.house import PUBSUB, ModelWorld, Ticking, settings_of
from tidemark.pipeline.spark import executors
from tidemark.resources.memory import load_revisions_once
from tidemark.resources.spark import SparkResource

with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    import tidemark.assets.location  # noqa: F401 (built once here, where the warning is expected)

HERE = Path(__file__).parent

load_revisions_once()  # an instance takes half as long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.BetaWarning"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def world() -> ModelWorld:
    return ModelWorld(PUBSUB)


@pytest.fixture
def ticking(world: ModelWorld, instance: dg.DagsterInstance, tmp_path: Path) -> Ticking:
    return Ticking(settings_of(PUBSUB, tmp_path), instance, world.clock, world)


@pytest.fixture
def house(tmp_path: Path, instance: dg.DagsterInstance) -> Any:
    """A lake with three closed windows, of which none is computed."""
    from tests.dagster.test_diffs_asset import CLASSIC, Materializing

    return Materializing(tmp_path, CLASSIC, instance)


@pytest.fixture(scope="session")
def materialized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dg.ExecuteInProcessResult]:
    """A lake whose three closed windows are computed, and the run that did it."""
    from tests.dagster.test_diffs_asset import CLASSIC, WINDOWS, Materializing  # it needs these fixtures itself

    with dg.DagsterInstance.ephemeral() as instance:
        house = Materializing(tmp_path_factory.mktemp("computed"), CLASSIC, instance)
        return house, house.run(WINDOWS[0], WINDOWS[-1])


@pytest.fixture(scope="session")
def computed(materialized: tuple[Any, dg.ExecuteInProcessResult]) -> Path:
    """The folder of that lake, to be copied."""
    house, result = materialized
    assert result.success
    return Path(house.folder)


@pytest.fixture(scope="module", autouse=True)
def _one_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A classic session that outlives the runs of a file: each run would start one of its own, and Python workers, for
    seconds. In `test_diffs_asset.py` each does."""
    if request.path.stem == "test_diffs_asset":
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkResource, "teardown_after_execution", lambda *_: None)
        patched.setattr(executors, "able_executors", lambda *_: [])  # each run's session would be checked again
        yield
    if session := SparkSession.getActiveSession():
        session.stop()
