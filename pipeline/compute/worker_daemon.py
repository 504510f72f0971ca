"""Replaces `pyspark.daemon`, the process that forks Spark's Python workers. The modules of a micro-batch are imported
before the process forks, so that new workers start immediately. New workers are often needed, because Spark ends idle
ones after a minute."""

import gc

gc.disable()  # modules are not garbage: collecting takes a fifth of the start-up time

import pyarrow as pa  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import tidemark.pipeline.compute.slices  # noqa: E402
import tidemark.pipeline.spark.executors  # noqa: E402, F401

pa.scalar(True)  # Arrow imports pandas when it first converts a value
gc.freeze()  # keeps the workers' garbage collection from writing to the modules, which would copy shared memory
gc.enable()

if __name__ == "__main__":
    manager()
