"""Run as a module in place of `pyspark.daemon`: the process that forks Spark's Python workers, with what a task of the
micro-batch needs imported beforehand. Spark ends idle workers after a minute; a new one is then there at once."""

from pyspark.daemon import manager

import tidemark.pipeline.spark.slices  # noqa: F401 (what the workers find imported)

if __name__ == "__main__":
    manager()
