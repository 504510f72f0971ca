"""Functions that Spark tasks run on executors that may lack tidemark.

The functions are pickled by value, so that an executor without tidemark can report what it lacks before a run writes or
pulls anything.
"""

import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.errors import CorruptObject, ExecutorsUnable, LakeFull
from tidemark.pipeline.lake.store.disk import FULL

CONTRACT = 7
"""Version of the tasks' input data and algorithm, unrelated to the message contract. An executor with another version
of tidemark can run tasks only if its CONTRACT is the same."""

LOOKS = 4
"""Number of tasks that check the executors. There are several, because executors may differ."""

ABILITY = pa.schema({"executor": pa.string(), "unable": pa.string()})
"""Schema of the result of checking an executor: its Python and machine, and why it cannot run tidemark (null if it
can)."""

WINDOWS = ("compute.slices",)
READERS = (*WINDOWS, "ingest.rounds")
SOURCE = (*READERS, "ingest.source.pubsub_source")
"""Modules below `tidemark.pipeline` that tasks import: to compute windows (WINDOWS), to read Pub/Sub (READERS), and for
`format("pubsub")` (SOURCE)."""

PYTHON = "spark.sql.execution.pyspark.python"
"""Spark's setting for the executors' Python. Python code that runs on the driver does not use it."""

ABLE = "spark.tidemark.executors_able"
"""Prefix of the session settings that record, per module, that the executors can run it. Processes that share the
session then need not check the executors again."""

REMEDY = (
    "install tidemark in the Python of Spark's executors, in the version that runs here, or pack it with `tidemark "
    "provision --executors executors.tar.gz` and name that file in spark.executor_environment, or in register(spark, "
    "environment=...)"
)

LOCAL_REMEDY = (
    f"they run on the driver's machine, so start Spark with $PYSPARK_PYTHON set to a Python that has tidemark, such as "
    f"{sys.executable}"
)
"""The remedy if executors on the driver's machine cannot run tidemark."""

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that Spark runs in its tasks. Its input and its output are batches of rows."""

NO_START = re.compile(r"Cannot run program .*|.*PYTHON_VERSION_MISMATCH.*|tidemark: no Python .*")
"""Matches the part of a Spark error that says why an executor's Python does not start."""

NO_MODULE = re.compile(rf"No module named .*|{NO_START.pattern}")
"""Like NO_START, for tasks that run tidemark's code alone: a custom table's own code may lack a module as well."""

OF_A_DISK = re.compile(r"OSError|IOException|FileSystemException|SPILL_OUT_OF_MEMORY|([Ee]rrno|os error) (28|122)")
"""Matches a line of a Spark error about a disk. Other lines may be a custom table's own text, whatever it says."""

DAMAGE = re.compile(
    r"polars\.exceptions\.ComputeError: parquet: .*|(FileNotFoundError|\[PATH_NOT_FOUND\]).*event_hour=.*"
    r"|\[FAILED_READ_FILE\b.*"
)
"""Matches the part of a Spark error that says that Polars or Spark cannot read a file of heartbeats."""


def run_slices(work: bytes, of: pa.Schema, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute slices of time in a Spark task, and yield their rows in the schema `of`. `work` is a pickled Work or
    Search. The column `id` of `numbers` contains the indexes of the slices to compute."""
    unable = _unable(WINDOWS)
    for batch in numbers:
        for number in batch["id"].to_pylist():
            if unable:
                yield pa.RecordBatch.from_pylist([{"unable": unable}], of)
            else:
                given = pickle.loads(work)  # noqa: S301 (Spark itself pickles this function)
                yield pa.RecordBatch.from_pylist(list(given.answers(given.slices[number])), of)


def run_output(output: bytes, of: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a Spark task, and yield the answers in the schema `of`. `output` is a pickled Output."""
    unable = _unable(WINDOWS)
    answers = [{"unable": unable}] if unable else pickle.loads(output).answers(rows)  # noqa: S301 (like `run_slices`)
    for answer in answers:
        yield pa.RecordBatch.from_pylist([answer], of)


def report_ability(needs: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check whether this executor can import these modules, and yield one row of ABILITY per batch."""
    said = {"executor": _here(), "unable": _unable(needs)}
    for _ in batches:
        yield pa.RecordBatch.from_pylist([said], ABILITY)


def _here() -> str:
    import platform

    return f"{sys.executable} on {platform.node()}"


def _unable(needs: Sequence[str]) -> str | None:
    """Return this executor's name and why it cannot run tasks that need these modules; None if it can."""
    from importlib import import_module

    try:
        for name in needs:
            import_module(f"tidemark.pipeline.{name}")
        there = import_module("tidemark.pipeline.spark.executors").CONTRACT
    except (ImportError, AttributeError) as error:
        return f"{_here()}: {error}"
    if there == CONTRACT:
        return None
    return f"{_here()}: it has another version of tidemark (task version {there} instead of {CONTRACT})"


def rows_from_tasks(session: SparkSession, tasks: int, task: Task, of: pa.Schema) -> pa.Table:
    """Run `task` in `tasks` Spark tasks, and return their rows. Each task gets its number in the column `id`. Raises
    ExecutorsUnable."""
    return _rows_of(session.range(0, tasks, 1, tasks), task, of, NO_MODULE)


def write_rows(rows: DataFrame, output: Any, of: pa.Schema) -> pa.Table:
    """Let the Spark tasks that compute these rows write them to an Output, and return its rows in the schema `of`.
    Raises ExecutorsUnable, and the errors of the query."""
    return _rows_of(rows, partial(run_output, pickle.dumps(output), of), of, NO_START)


def _rows_of(given: DataFrame, task: Task, of: pa.Schema, causes: re.Pattern[str]) -> pa.Table:
    """Run `task` over these rows, and return its rows.

    Raises ExecutorsUnable if a row says in the column `unable` why the executor cannot run tidemark, or if Python does
    not start on an executor. After this error, the next run checks the session's executors again."""
    session = given.sparkSession
    try:
        rows = given.mapInArrow(task, from_arrow_schema(of)).toArrow()
    except Exception as error:  # PySpark or py4j raises it
        if (cause := causes.search(str(error))) is None:
            raise
        _forget(session)
        raise ExecutorsUnable(
            f"the Python of Spark's executors does not start ({cause[0].strip()[:500]}): in the process that starts "
            "Spark, set $PYSPARK_PYTHON to a Python of the driver's minor version with PySpark's dependencies "
            f"(pandas, pyarrow); then {REMEDY}"
        ) from error
    if lacking := sorted(filter(None, rows["unable"].unique().to_pylist())):
        _forget(session)
        is_local = (session.conf.get("spark.master", "") or "").startswith("local")
        remedy = LOCAL_REMEDY if is_local else REMEDY
        raise ExecutorsUnable(f"Spark's executors cannot run tidemark ({'; '.join(lacking)}): {remedy}")
    return rows


def answers_to(session: SparkSession, work: Any, of: pa.Schema) -> pa.Table:
    """Compute each slice of a Work or Search in its own Spark task, and return the rows in the schema `of`. Raises
    ExecutorsUnable, LakeFull, and CorruptObject if a file of heartbeats is damaged or missing."""
    with explaining_damage():
        return rows_from_tasks(session, len(work.slices), partial(run_slices, pickle.dumps(work), of), of)


@contextmanager
def explaining_damage() -> Iterator[None]:
    """Within this block, turn Spark's error about a damaged or missing file of heartbeats into CorruptObject, and one
    about a full disk into LakeFull."""
    try:
        yield
    except Exception as error:
        of_a_disk = filter(OF_A_DISK.search, str(error).splitlines())
        if full := [line.strip() for line in of_a_disk if any(sign in line for sign in FULL)]:
            raise LakeFull(
                "no space is left on the lake's disk, or on a disk of Spark's executors: free some space, and the "
                f"next run computes the windows. Nothing was committed ({full[-1][:500]})"
            ) from error
        if (damage := DAMAGE.search(str(error))) is None:
            raise
        raise CorruptObject(
            "a file of heartbeats is damaged or gone: run `tidemark repair`, which names it. Nothing was committed "
            f"({damage[0].strip()[:500]})"
        ) from error


def able_executors(session: SparkSession, needs: Sequence[str] = READERS) -> list[str]:
    """Run a few tiny tasks, and return the Python and the machine of each executor that ran one. Raises ExecutorsUnable
    within seconds if one of these executors cannot run the modules in `needs`."""
    return sorted(set(rows_from_tasks(session, LOOKS, partial(report_ability, needs), ABILITY)["executor"].to_pylist()))


def require_able(session: SparkSession, needs: Sequence[str] = READERS) -> None:
    """Raise ExecutorsUnable if the executors cannot run the modules in `needs`. A session is checked only once. An
    executor that joins later is checked when it runs a task."""
    able = f"{CONTRACT} {session.conf.get(PYTHON, '')}"
    if any(session.conf.get(f"{ABLE}.{name}", "") != able for name in needs):
        able_executors(session, needs)
        for name in needs:
            session.conf.set(f"{ABLE}.{name}", able)


def _forget(session: SparkSession) -> None:
    for name in SOURCE:
        session.conf.unset(f"{ABLE}.{name}")


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
