"""Run as a program: a job on the shared session that is interrupted, as Dagster interrupts a run that is cancelled, and
the resource torn down. The job's task writes its process id to a file, and would then go on for minutes."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa

from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.spark import SparkResource

LONG_SECONDS = 240


def go_on(file: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(LONG_SECONDS)
    yield from batches


def interrupt_once_there(file: Path) -> None:
    while not file.exists() or not file.read_text():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    remote, file = sys.argv[1], Path(sys.argv[2])
    spark = SparkResource(spark_config=session_config(Settings(spark=SparkSettings(remote=remote))))
    session = spark.session()
    Thread(target=interrupt_once_there, args=(file,), daemon=True).start()
    try:
        session.range(0, 1, 1, 1).mapInArrow(partial(go_on, str(file)), "id long").collect()
    except KeyboardInterrupt:
        nothing: Any = None
        spark.teardown_after_execution(nothing)
        print("interrupted", flush=True)
        os._exit(0)  # at the interpreter's own end, gRPC sometimes aborts after an interrupted call
