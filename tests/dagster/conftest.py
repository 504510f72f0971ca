"""Dagster warns of what it calls beta, single-run backfills among it, each time that definitions are built."""

import warnings
from pathlib import Path

import dagster as dg
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    import tidemark.assets.location  # noqa: F401 (built once here, where the warning is expected)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.BetaWarning"))
