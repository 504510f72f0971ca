"""Spark's classes as the JVM has them in memory, kept in a file: a JVM that maps it begins in two thirds of the time.

`python -m tests.spark.archive` makes it, in half a minute, unless it is there. It holds for one Java and one set of
JARs, and lies in the cache that all checkouts share; the JVM goes without it where it does not fit.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.cache import cache, made_once

MADE_WITHIN_SECONDS = 300
KEPT = "-Xshare:auto -Xlog:disable -Xlog:all=off -XX:SharedArchiveFile={file}"
"""Options of a JVM that uses the archive, and says nothing where it cannot."""

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""A test's JVM lives for seconds: its second compiler would take half of its processor time."""

MAKES = """
import sys
from pyspark.sql import SparkSession
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.java import set_java_home
from tidemark.pipeline.spark.session import session_config

set_java_home()
in_process = {"remote": None, "config": {"spark.master": "local[2]", "spark.driver.memory": "1g"}}
settings = Settings(spark=SparkSettings.model_validate(in_process))
spark = SparkSession.builder.config(map={**session_config(settings)}).getOrCreate()
numbers = spark.range(1000).selectExpr("id", "id % 10 as tenth")
numbers.groupBy("tenth").count().join(numbers, "tenth").orderBy("id").collect()
numbers.mapInArrow(lambda batches: batches, numbers.schema).write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).groupBy("tenth").applyInPandas(lambda rows: rows, numbers.schema).count()
spark.stop()
"""


def archive() -> Path:
    """Where the archive for this Java and this environment's PySpark is, if it was made. Every start of the tests asks
    for it: nothing is run or imported."""
    version, found = metadata.version("pyspark"), [sys.prefix, os.environ.get("JAVA_HOME"), shutil.which("java")]
    changed = [Path(place).resolve().stat().st_mtime_ns for place in found[1:] if place and Path(place).exists()]
    named = hashlib.sha256("\n".join(map(str, [*found, *changed])).encode()).hexdigest()[:16]
    return cache() / f"spark-{version}-{named}.jsa"


def options() -> str:
    """What `$SPARK_SUBMIT_OPTS` is to be; empty without an archive."""
    file = archive()
    return KEPT.format(file=file) if file.exists() else ""


def make() -> Path:
    """Make it unless it is there."""
    file = archive()
    with made_once(file) as folder:
        if folder is not None:
            made = folder / file.name
            ours = {
                "JDK_JAVA_OPTIONS": FIRST_COMPILER,
                "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made}",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            }
            subprocess.run(
                [sys.executable, "-c", MAKES, str(folder / "numbers")],
                env=os.environ | ours,
                check=True,
                capture_output=True,
                timeout=MADE_WITHIN_SECONDS,
            )
            made.rename(file)
    return file


if __name__ == "__main__":
    print(make())
