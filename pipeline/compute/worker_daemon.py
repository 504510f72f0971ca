"""Replaces `pyspark.daemon`, the process that forks Spark's Python workers. The modules of a micro-batch are imported
before the process forks, so that new workers start immediately. New workers are often needed, because Spark ends idle
ones after a minute."""

import gc
import sys
from os.path import realpath

gc.disable()  # modules are not garbage: collecting takes a fifth of the start-up time

# Spark puts PySpark first on the path as a zip file, whose modules Python compiles at each start. That takes a second.
# So the zip file of the installed PySpark is left out.
zipped = {realpath(f"{path}/pyspark/python/lib/pyspark.zip") for path in sys.path}
sys.path[:] = [path for path in sys.path if realpath(path) not in zipped]

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
