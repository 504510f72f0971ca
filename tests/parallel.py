"""How parallel workers share the tests: `pytest -n auto`.

A worker takes one file at a time, so that a file's fixtures are set up once. Files that share a JVM are one unit.
Long files whose tests share nothing are taken test by test.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

WORKER_BYTES = 3 << 30
"""Memory that a worker may need: two JVMs of a gigabyte each, an emulator, and itself."""

MEMORY_DISK, ITS_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108 (a folder of our own is made in it)
"""Where the tests' files are if that much is free there: they write many small ones, each down to the disk."""

SPARK_SESSION = "the session of tests/spark"
DAGSTER_ON_SPARK = "the session of Dagster's runs"
SHARED_JVM = {
    "tests/dagster/test_repair.py": DAGSTER_ON_SPARK,
    "tests/dagster/test_diffs_asset.py": DAGSTER_ON_SPARK,
    "tests/dagster/test_ingest.py": DAGSTER_ON_SPARK,
    "tests/dagster/test_own_tables.py": DAGSTER_ON_SPARK,
    "tests/dagster/test_silence.py": DAGSTER_ON_SPARK,
    "tests/spark/test_calls_of_runs.py": SPARK_SESSION,
    "tests/spark/test_connect.py": SPARK_SESSION,
    "tests/spark/test_registration.py": SPARK_SESSION,
    "tests/spark/test_micro_batch.py": SPARK_SESSION,
    "tests/spark/test_own_tables.py": SPARK_SESSION,
    "tests/spark/test_pubsub_source.py": SPARK_SESSION,
    "tests/spark/test_rounds.py": SPARK_SESSION,
    "tests/spark/test_same_rows.py": SPARK_SESSION,
}
"""The files whose tests run Spark in their own process. A file that is missing here starts a JVM of its own."""

TEST_BY_TEST = (
    "tests/simulation/test_planted_faults.py",
    "tests/simulation/test_simulation.py",
    "tests/tuning/test_report.py",
    "tests/upkeep/test_housekeeping.py",
    "tests/upkeep/test_play.py",
)
"""Long files whose tests share nothing that is expensive to set up."""

CLUSTER = "tests/spark/test_cluster.py"
"""The file that takes longest. Its tests of classic sessions and its other tests are a unit each."""

LONGEST_FIRST = (
    *("tests/test_tutorial.py", CLUSTER, f"{CLUSTER}[classic]", "tests/upkeep/test_play.py::test_many_seeds"),
    *("tests/wheel/test_wheel.py", SPARK_SESSION, DAGSTER_ON_SPARK, "tests/cli/test_cli.py"),
    "tests/observe/test_alerts.py",
    "tests/simulation/test_simulation.py::test_every_invariant_holds_under_any_trouble",
)
"""What takes longest, so that no worker is left alone with it at the end."""


COLLECT_AFTER = 20_000, 20, 20
"""Python's own thresholds make the tests spend a tenth of their processor time on looking for garbage."""


class ByFile(LoadScopeScheduling):
    """Gives a worker the next file, or the next files that share a JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """What a worker takes as one: a file, the files that share a JVM, or a single test."""
    file = nodeid.partition("::")[0]
    if file in TEST_BY_TEST:
        return nodeid
    if file == CLUSTER and nodeid.endswith("[classic]"):
        return f"{CLUSTER}[classic]"
    return SHARED_JVM.get(file, file)


def pytest_configure(config: pytest.Config) -> None:
    """Put the temporary files of a parallel run into memory, but not those of slow tests, where executors unpack
    gigabytes. Look for no garbage while modules are imported."""
    gc.disable()
    is_parallel = getattr(config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    is_small = config.option.markexpr != "slow"
    has_room = MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free >= ITS_BYTES
    if is_parallel and is_small and has_room and config.option.basetemp is None:
        folder = config.option.basetemp = tempfile.mkdtemp(prefix="tidemark-tests-", dir=MEMORY_DISK)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    config.option.loadscopereorder = False  # else the files with the most tests come first, however short they are
    return ByFile(config, log)  # type: ignore[arg-type]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers of `-n auto`: twice as many as cores, because many tests wait, as far as the memory allows."""
    return max(1, min(2 * (os.cpu_count() or 1), psutil.virtual_memory().available // WORKER_BYTES))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a parallel run, put the longest first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        order = {unit: place for place, unit in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: order.get(unit_of(item.nodeid), len(order)))


def pytest_collection_finish() -> None:
    """Everything is imported: look for garbage from here on."""
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
