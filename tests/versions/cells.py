"""The cells of the matrix, as data: versions of what tidemark stands on, and the tests that prove that they serve."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment, and the arguments of pytest.

    `overrides` take the place of the pins of constraints.txt: `pyspark==4.0.5`, or a bare `py4j`, whose version then
    follows from what needs it.
    """

    name: str
    tests: tuple[str, ...]
    python: str = "3.11"
    overrides: tuple[str, ...] = ()


def _of(module: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{module}.py::{test}" for test in tests)


WINDOWS = _of(
    "spark/test_micro_batch",
    "test_a_range_is_computed_window_by_window_and_an_empty_one_counts",
    "test_a_task_that_is_killed_after_it_wrote_leaves_only_orphans",
)
OWN_TABLES = _of(
    "spark/test_own_tables",
    "test_an_example_has_duckdbs_rows_through_late_heartbeats_a_backfill_and_a_repair[per_region]",
    "test_each_window_gets_its_own_input_however_the_range_is_cut",
)
READERS = _of("spark/test_rounds", "test_a_backlog_is_landed_whole_by_four_readers_that_go_to_tracking_first")
CONNECT = _of("spark/test_connect", "test_a_client_with_the_token_gets_the_rows_that_a_classic_session_gets")
REGISTERING = ("tests/spark/test_registration.py",)
SOURCE = (
    "tests/spark/test_pubsub_stream_reader.py",
    *_of(
        "spark/test_pubsub_source",
        "test_readers_get_every_message_whole_and_the_rejected_go_to_quarantine",
        "test_a_driver_killed_inside_foreach_batch_gets_the_same_batch_again",
    ),
)
"""In a classic session. It needs PySpark 4.2."""

ON_SPARK = (*WINDOWS, *OWN_TABLES, *READERS, *CONNECT, *REGISTERING)
DAGSTER = ("tests/dagster",)
OF_DAGSTER = tuple(f"tests/dagster/test_{name}.py" for name in ("private", "housekeeping", "definitions", "sensors"))
ON_PYTHON = ("tests/watermark", "tests/lake", "tests/contract", *WINDOWS, *OWN_TABLES, *REGISTERING, *OF_DAGSTER)
DAGSTERS_PARTS = ("shared", "graphql", "pipes", "webserver", "pyspark", "spark", "postgres", "k8s")

CELLS = (
    Cell("pyspark-4.0", ON_SPARK, overrides=("pyspark==4.0.5", "py4j")),
    Cell("pyspark-4.1", ON_SPARK, overrides=("pyspark==4.1.4", "py4j")),
    Cell("pyspark-4.2", (*ON_SPARK, *SOURCE), overrides=("pyspark==4.2.1", "py4j")),
    Cell("pyspark-4.3", (*ON_SPARK, *SOURCE)),
    Cell(
        "dagster-1.12", DAGSTER, overrides=("dagster==1.12.22", "gql", *(f"dagster-{part}" for part in DAGSTERS_PARTS))
    ),
    Cell("dagster-1.13", DAGSTER),
    Cell("python-3.12", ON_PYTHON, python="3.12"),
    Cell("python-3.13", ON_PYTHON, python="3.13"),
    Cell("python-3.14", ON_PYTHON, python="3.14"),
)
