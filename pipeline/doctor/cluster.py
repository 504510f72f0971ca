"""Spark's executors: on a server or a cluster that runs already, and on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from tidemark.local.services.stack import is_ours_to_start
from tidemark.pipeline.doctor.finding import Said, Setup, ok, warning
from tidemark.pipeline.errors import ExecutorsUnable, SparkUnreachable
from tidemark.pipeline.spark.executors import LOCAL_REMEDY, WINDOWS, look_at
from tidemark.pipeline.spark.session import (
    check_answers,
    classic_session,
    session_config,
    shared_session,
    without_options,
)

STARTS_WITHIN_SECONDS = 20.0
"""How long another Python may take to import what a task over windows needs."""


def check_executors(setup: Setup) -> Iterator[Said]:
    """Executors can run tidemark. Asked where a Spark Connect server answers, and on a cluster that classic sessions
    use, where one is started for this. Those on this machine run a Python that `check_python` looks at."""
    spark = setup.settings.spark
    if spark.is_classic:
        if not setup.settings.spark_master.startswith("local"):
            session = classic_session(session_config(setup.settings))
            try:
                yield from seen_executors(session)
            finally:
                session.stop()
        return
    if is_ours_to_start(setup.settings):
        return
    named = without_options(spark.remote or "")
    try:
        check_answers(spark.remote or "")
    except SparkUnreachable:  # the check of Spark says it
        return
    try:
        yield from seen_executors(shared_session(session_config(setup.settings)))
    except SparkConnectGrpcException as error:
        if "UNAUTHENTICATED" not in str(error):
            raise
        yield warning(
            f"the executors were not looked at: the server at {named} wants its token: set "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN to it for `tidemark doctor`. `tidemark up` tells nobody the token that "
            "it makes: set the variable to a secret of yours before `tidemark up` as well"
        )


def seen_executors(session: SparkSession) -> Iterator[Said]:
    """Who got a task. Raises ExecutorsUnable."""
    for executor in look_at(session):
        yield ok(f"the executors' {executor} has tidemark and Polars; Spark is {session.version}")


def check_python(setup: Setup) -> Iterator[Said]:
    """The Python that Spark's workers on this machine run, if that is another one, can run tidemark. Raises
    ExecutorsUnable."""
    spark, chosen = setup.settings.spark, os.environ.get("PYSPARK_PYTHON", sys.executable)
    is_started_here = spark.is_classic or is_ours_to_start(setup.settings)
    master = setup.settings.spark_master
    if chosen == sys.executable or not is_started_here or not master.startswith("local"):
        return
    needs = "; ".join(f"import tidemark.pipeline.{name}" for name in WINDOWS)
    try:
        subprocess.run([chosen, "-c", needs], check=True, capture_output=True, text=True, timeout=STARTS_WITHIN_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        *_, why = (getattr(error, "stderr", None) or str(error)).splitlines()
        raise ExecutorsUnable(
            f"$PYSPARK_PYTHON is {chosen}, which Spark's executors run, and it cannot run tidemark ({why}): "
            f"{LOCAL_REMEDY}"
        ) from error
    yield ok(f"Spark's executors run {chosen}, which has tidemark and Polars")
