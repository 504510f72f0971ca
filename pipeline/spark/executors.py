"""The function that a task of the micro-batch runs. It travels by value, so that an executor without tidemark or Polars
can say so, and the micro-batch is computed by the DataFrame functions instead."""

import pickle
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import cloudpickle

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


def run_slices(work: bytes, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute the slices whose numbers are in the column `id`; yields rows of ANSWER."""
    try:
        from tidemark.pipeline.spark import slices

        there = slices.CONTRACT
    except (ImportError, AttributeError) as error:
        there, unable = None, str(error)
    else:
        unable = f"it has another tidemark, whose contract is {there} and not {CONTRACT}"
    for batch in numbers:
        for number in batch["id"].to_pylist():
            if there != CONTRACT:
                yield pa.RecordBatch.from_pylist([{"unable": unable}], ANSWER)
            else:
                given = pickle.loads(work)  # noqa: S301 (Spark itself pickles this function)
                answers = list(slices.compute(given, given.slices[number]))
                yield pa.RecordBatch.from_pylist(answers, ANSWER)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
