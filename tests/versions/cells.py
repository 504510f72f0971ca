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


WINDOWS = ("tests/spark/test_micro_batch.py",)
SOURCE = "tests/spark/test_pubsub_source.py"
ON_SPARK = (
    *WINDOWS,
    "tests/spark/test_own_tables.py",
    "tests/spark/test_rounds.py::test_a_backlog_is_landed_whole_by_four_readers_that_go_to_tracking_first",
    "tests/spark/test_pubsub_stream_reader.py",
    f"{SOURCE}::test_readers_get_every_message_whole_and_the_rejected_go_to_quarantine",
    f"{SOURCE}::test_a_driver_killed_inside_foreach_batch_gets_the_same_batch_again_and_the_example_goes_on",
    f"{SOURCE}::test_a_batch_read_lands_once_under_its_name",
    "tests/spark/test_connect.py",
    "tests/spark/test_pubsub_source_connect.py",
)
"""Windows, tables of one's own, readers and the source in a classic session; windows and the source over Connect."""

DAGSTER = ("tests/dagster",)
ON_PYTHON = ("tests/watermark", "tests/lake", "tests/ingest", "tests/cli", *WINDOWS, *DAGSTER)
DAGSTERS_PARTS = ("shared", "graphql", "pipes", "webserver", "pyspark", "spark", "postgres", "k8s")

CELLS = (
    Cell("pyspark-4.0", ON_SPARK, overrides=("pyspark==4.0.5", "py4j")),
    Cell("pyspark-4.1", ON_SPARK, overrides=("pyspark==4.1.4", "py4j")),
    Cell("pyspark-4.2", ON_SPARK, overrides=("pyspark==4.2.1", "py4j")),
    Cell("pyspark-4.3", ON_SPARK),
    Cell("dagster-1.12", DAGSTER, overrides=("dagster==1.12.22", *(f"dagster-{part}" for part in DAGSTERS_PARTS))),
    Cell("dagster-1.13", DAGSTER),
    Cell("python-3.12", ON_PYTHON, python="3.12"),
    Cell("python-3.13", ON_PYTHON, python="3.13"),
    Cell("python-3.14", ON_PYTHON, python="3.14"),
)
