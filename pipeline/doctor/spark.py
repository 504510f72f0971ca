"""Checks Java, Spark, its executors, and what Spark needs for a lake in a bucket."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from tidemark.local.services.own_files import SPARK_CONNECT
from tidemark.local.services.processes import noted_in
from tidemark.local.services.stack import TOKEN, is_ours_to_start, own_spark_port, runs_spark_here
from tidemark.pipeline.doctor.finding import Setup, Statement, broken, ok, warning
from tidemark.pipeline.errors import ExecutorsUnable, ToolMissing
from tidemark.pipeline.figures import counted
from tidemark.pipeline.settings import WINDOW_SLOTS, Settings
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.executor_archive import ARCHIVE, check_archive, manifest_of, own_manifest
from tidemark.pipeline.spark.executors import LOCAL_REMEDY, WINDOWS, able_executors
from tidemark.pipeline.spark.java import find_java
from tidemark.pipeline.spark.session import (
    check_answers,
    classic_session,
    local_slots,
    refuse_other_token,
    server_config,
    session_config,
    shared_session,
    without_options,
)

CONNECTOR = "gcs-connector"
WITHOUT_CONNECTOR = "without it, runs of custom tables fail with ToolMissing"
JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
"""Spark settings that may contain the JAR of the Cloud Storage connector."""


def check_java(setup: Setup) -> Iterator[Statement]:
    """Check that this machine has a Java that can run Spark, if this machine starts Spark."""
    if not runs_spark_here(setup.settings):
        return
    try:
        yield ok(f"Java: {find_java()}")
    except ToolMissing as error:
        yield broken(f"Spark needs a Java, and {error}")


def check_spark(setup: Setup) -> Iterator[Statement]:
    """Check that Spark answers and that its executors can run tidemark, or that `tidemark up` will start Spark. On a
    cluster without Spark Connect, start a classic session for this. If tidemark starts Spark here, only `check_python`
    checks its executors. Raises SparkUnreachable, InvalidSettings if `spark.remote` names a host for which
    tidemark cannot start Spark, and ExecutorsUnable if an executor cannot run tidemark."""
    spark, master = setup.settings.spark, setup.settings.spark_master
    if spark.is_classic:
        yield ok(f"a classic session of PySpark {pyspark.__version__} on {master}, started with each run")
        if not master.startswith("local"):
            session = classic_session(session_config(setup.settings))
            try:
                yield from report_executors(session)
            finally:
                session.stop()
        return
    named = without_options(spark.remote or "")
    if is_ours_to_start(setup.settings):
        own_spark_port(setup.settings)
        yield ok(f"nothing answers at {named} yet: `tidemark up` starts Spark {pyspark.__version__} there")
        return
    check_answers(spark.remote or "")
    # The token of our own server is not in the environment.
    if SPARK_CONNECT not in noted_in(setup.settings.dagster.state_folder).alive():
        refuse_other_token(spark.remote or "")
    yield ok(f"a Spark Connect server answers at {named}; the client is PySpark {pyspark.__version__}")
    try:
        yield from report_executors(shared_session(session_config(setup.settings)))
    except SparkConnectGrpcException as error:
        if "UNAUTHENTICATED" not in str(error):
            raise
        yield warning(
            f"the executors were not checked, because the server at {named} requires its token: set ${TOKEN} to it. "
            "`tidemark up` reveals no token that it generates; to choose one, set the variable before `tidemark up`"
        )


def check_task_slots(setup: Setup) -> Iterator[Statement]:
    """Check that Spark has task slots for the continuous readers and for windows."""
    settings = setup.settings
    if not settings.ingest.is_continuous or not runs_spark_here(settings):
        return
    master, readers = settings.spark_master, settings.ingest.readers
    places = local_slots(master)
    if places is not None and places <= readers:
        yield warning(
            f"Spark on {master!r} has {counted(places, 'task slot')} for {counted(readers, 'reader')} and the windows, "
            f'so fewer readers run: set "spark.master" = "local[{readers + WINDOW_SLOTS},4]" in [spark.config]'
        )
    elif places is not None:
        yield ok(f"Spark on {master} has task slots for {counted(readers, 'reader')} and for windows")


def check_token(setup: Setup) -> Iterator[Statement]:
    """Check that the settings do not contain the token of a Spark Connect server."""
    if "token=" in (remote := setup.settings.spark.remote or ""):
        yield warning(
            f"spark.remote contains the token of the server at {without_options(remote)}, which exposes it in a file, "
            f"in messages and in Dagster's logs: remove the token from spark.remote, and set ${TOKEN} instead"
        )


def check_environment(setup: Setup) -> Iterator[Statement]:
    """Check that a local archive for executors exists, and contains packages for this Python and this version of
    tidemark. Raises InvalidSettings if the archive is unusable, for example because it is for another Python."""
    if (archive := setup.settings.spark.executor_environment) is None:
        return
    if is_address(archive):
        by = ", with Google's connector" if archive.startswith("gs:") else ""
        yield ok(f"executors get tidemark from {archive}, which Spark's machines read{by}")
        return
    check_archive({ARCHIVE: archive})
    packed, ours = manifest_of(Path(archive)), own_manifest()
    if packed == ours:
        yield ok(f"executors get tidemark {packed.tidemark} for Python {packed.python} from {archive}")
    else:
        theirs, mine = (f"{one.tidemark} (task version {one.contract})" for one in (packed, ours))
        remedy = f"pack it again with `tidemark provision --executors {archive}`"
        yield warning(f"{archive} contains tidemark {theirs}, but {mine} runs here: {remedy}")


def check_connector(setup: Setup) -> Iterator[Statement]:
    """Check that Spark has the JAR for reading and writing gs://, if the lake is in a bucket."""
    settings = setup.settings
    if settings.lake.folder is not None:
        return
    if not runs_spark_here(settings):
        server = without_options(settings.spark.remote or "")
        yield ok(f"it is unknown whether Spark at {server} has Google's {CONNECTOR}; {WITHOUT_CONNECTOR}")
        return
    named = _named_connectors(settings)
    found = [name for name in named if _is_there(name)] or sorted(map(str, _jar_folder().glob(f"*{CONNECTOR}*.jar")))
    own = [name for name in named if not any(name in value for value in settings.spark.config.values())]
    if found:
        yield ok(f"Spark has Google's connector for gs://: {found[-1]}")
    elif own:  # added by tidemark, not by the settings
        yield ok(f"Google's connector for gs:// is not on this machine yet: `tidemark up` fetches it to {own[0]}")
    else:
        remedy = f'name it in [spark.config] as "spark.jars", or put it into {_jar_folder()}'
        yield broken(f"Spark has no {CONNECTOR} JAR for {settings.lake.uri}; {WITHOUT_CONNECTOR}: {remedy}")


def _named_connectors(settings: Settings) -> list[str]:
    config = session_config(settings) if settings.spark.is_classic else server_config(settings, Path("scratch"))
    named = [name.strip() for key in JARS for name in config.get(key, "").split(":" if "Path" in key else ",")]
    return [name for name in named if CONNECTOR in name]


def _is_there(name: str) -> bool:
    is_elsewhere = not name.endswith(".jar") or ("://" in name and not name.startswith("file:"))
    return is_elsewhere or Path(name.removeprefix("file:").removeprefix("//")).exists()


def _jar_folder() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


STARTS_WITHIN_SECONDS = 20.0
"""Time limit for the workers' Python to import the modules that a task over windows needs."""


def report_executors(session: SparkSession) -> Iterator[Statement]:
    """Run a few tasks, and report each executor that ran one. Raises ExecutorsUnable if one cannot run tidemark."""
    for executor in able_executors(session):
        yield ok(f"the executors' {executor} has tidemark and Polars; Spark is {session.version}")


def check_python(setup: Setup) -> Iterator[Statement]:
    """Check that the Python of Spark's workers on this machine can run tidemark, unless it is this process's Python.
    Raises ExecutorsUnable if it cannot."""
    settings, chosen = setup.settings, os.environ.get("PYSPARK_PYTHON", sys.executable)
    if chosen == sys.executable or not runs_spark_here(settings) or not settings.spark_master.startswith("local"):
        return
    needs = "; ".join(f"import tidemark.pipeline.{name}" for name in WINDOWS)
    try:
        subprocess.run([chosen, "-c", needs], check=True, capture_output=True, text=True, timeout=STARTS_WITHIN_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        *_, why = (getattr(error, "stderr", None) or str(error)).splitlines()
        said = f"$PYSPARK_PYTHON is {chosen}, and this Python cannot run tidemark ({why}): {LOCAL_REMEDY}"
        raise ExecutorsUnable(said) from error
    yield ok(f"Spark's executors run {chosen}, which has tidemark and Polars")
