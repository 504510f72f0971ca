"""Whether Spark's executors have what a micro-batch computes with. The function travels by value, so that an executor
without tidemark can say so."""

import json
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import cloudpickle

PROBED = 4
"""Tasks that look: more than one, since executors may differ."""

SAYS = "said string"


def look_at_executors(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row a task: its machine, and why it cannot compute in columns, or nothing."""
    import platform

    try:
        from tidemark.pipeline.spark import executors, slices

        unable = "" if slices.CONTRACT == executors.CONTRACT else "it has another tidemark"
    except (ImportError, AttributeError) as error:
        unable = str(error)
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"said": json.dumps([platform.node(), unable])}])


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
