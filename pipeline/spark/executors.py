"""What tasks run on an executor before anything of tidemark is known to be there. These functions travel by value, so
that an executor without tidemark or Polars can say so. Then the DataFrame functions compute instead, and readers are
refused before anything is pulled."""

import pickle
import re
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.pipeline.errors import ExecutorsUnable

CONTRACT = 1
"""Counts the changes of what travels to the tasks and what they do with it: another tidemark may be installed there."""

ANSWER = pa.schema(
    {
        "unable": pa.string(),
        "table": pa.string(),
        "path": pa.string(),
        "window": pa.string(),
        "rows": pa.int64(),
        "size": pa.int64(),
    }
)
"""One row a file that a task wrote, or one that says why the executor is unable to compute in columns."""

LOOKS = 4
"""Tasks that look at executors: more than one, since executors may differ."""

SAYS = "machine string, python string, unable string"

REMEDY = (
    "install tidemark in the Python of Spark's executors, in the version that runs here, or pack it with `tidemark "
    "pack executors.tar.gz` and name that file in spark.executor_environment, or in register(spark, environment=...)"
)

LOCAL_REMEDY = (
    f"they run on the driver's machine, so start Spark with $PYSPARK_PYTHON naming a Python that has tidemark, such as "
    f"{sys.executable}"
)
"""For a master such as local[2], which runs the driver's Python."""

CAUSES = re.compile(r"No module named .*|Cannot run program .*|.*PYTHON_VERSION_MISMATCH.*|tidemark: no Python .*")
"""Lines of Spark's errors that say why an executor's Python does not start."""


def run_slices(work: bytes, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute the slices whose numbers are in the column `id`; yields rows of ANSWER."""
    unable = _unable()
    for batch in numbers:
        for number in batch["id"].to_pylist():
            if unable:
                yield pa.RecordBatch.from_pylist([{"unable": unable}], ANSWER)
            else:
                from tidemark.pipeline.spark import slices

                given = pickle.loads(work)  # noqa: S301 (Spark itself pickles this function)
                answers = list(slices.compute(given, given.slices[number]))
                yield pa.RecordBatch.from_pylist(answers, ANSWER)


def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row a task: its machine, its Python, and why that cannot run tidemark, or nothing."""
    import platform

    unable = _unable("spark.slices", "ingest.on_spark", "ingest.pubsub_source")
    for _ in batches:
        said = {"machine": platform.node(), "python": sys.executable, "unable": unable}
        yield pa.RecordBatch.from_pylist([said])


def _unable(*modules: str) -> str:
    """Why this executor cannot run these modules of `tidemark.pipeline` as the driver means them; "" if it can.
    `spark.slices` alone, unless there are others."""
    from importlib import import_module

    try:
        for name in modules or ("spark.slices",):
            import_module(f"tidemark.pipeline.{name}")
        there = import_module("tidemark.pipeline.spark.executors").CONTRACT
    except (ImportError, AttributeError) as error:
        return str(error)
    return "" if there == CONTRACT else f"it has another tidemark, whose contract is {there} and not {CONTRACT}"


def look_at(session: SparkSession) -> list[tuple[str, str, str]]:
    """Of the executors that got a task: machine, Python, and why that cannot run tidemark, or "". Raises
    ExecutorsUnable where the Python does not even start there."""
    try:
        rows = session.range(0, LOOKS, 1, LOOKS).mapInArrow(look, SAYS).collect()
    except PySparkException as error:
        cause = CAUSES.search(str(error))
        if cause is None:
            raise
        raise ExecutorsUnable(
            f"the Python of Spark's executors does not start ({cause[0].strip()[:500]}): name one that is there in "
            "$PYSPARK_PYTHON of the process that starts Spark, with PySpark's own needs (pandas, pyarrow) and of this "
            f"minor version; then {REMEDY}"
        ) from error
    return sorted({tuple(row) for row in rows})


def require_able(session: SparkSession) -> None:
    """Raise ExecutorsUnable, within seconds, unless the executors can run tidemark: by a few tiny tasks."""
    lacking = [(machine, python, why) for machine, python, why in look_at(session) if why]
    if lacking:
        named = "; ".join(f"{python} on {machine}: {why}" for machine, python, why in lacking)
        is_local = (session.conf.get("spark.master", "") or "").startswith("local")
        remedy = LOCAL_REMEDY if is_local else REMEDY
        raise ExecutorsUnable(f"Spark's executors cannot run tidemark ({named}): {remedy}")


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
