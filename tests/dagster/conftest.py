"""Dagster warns of what it calls beta, single-run backfills among it, each time that definitions are built. Runs on a
classic Spark session share one."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tidemark.resources.spark import SparkResource

with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    import tidemark.assets.location  # noqa: F401 (built once here, where the warning is expected)

HERE = Path(__file__).parent
ON_ONE_SESSION = ("test_backlog", "test_repair", "test_silence", "test_staleness")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.BetaWarning"))


@pytest.fixture(scope="module", autouse=True)
def _one_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A classic session that outlives the runs of a file: each run would start one of its own, and Python workers, for
    seconds. In `test_diffs_asset.py` each does."""
    if request.path.stem not in ON_ONE_SESSION:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkResource, "teardown_after_execution", lambda *_: None)
        yield
    if session := SparkSession.getActiveSession():
        session.stop()
