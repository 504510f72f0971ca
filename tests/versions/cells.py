"""The cells of the matrix, as data: versions of what tidemark stands on, and the tests that prove that they serve. They
are whole modules: the name of a single test that was renamed would be noticed only here."""

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


ON_SPARK = tuple(
    f"tests/spark/test_{name}.py" for name in ("micro_batch", "own_tables", "rounds", "connect", "registration")
)
SOURCE = ("tests/spark/test_pubsub_stream_reader.py", "tests/spark/test_pubsub_source.py")
"""In a classic session. It needs PySpark 4.2."""

DAGSTER = ("tests/dagster",)
ON_PYTHON = (
    *("tests/watermark", "tests/lake", "tests/contract"),
    *("tests/spark/test_micro_batch.py", "tests/spark/test_own_tables.py", "tests/spark/test_registration.py"),
    *("tests/dagster/test_housekeeping.py", "tests/dagster/test_sensors.py", "tests/dagster/test_embedded.py"),
)
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
