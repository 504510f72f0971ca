"""Spark's executors, on a server or a cluster that runs already."""

from collections.abc import Iterator

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from tidemark.pipeline.doctor.finding import Said, Setup, ok, warning
from tidemark.pipeline.errors import SparkUnreachable
from tidemark.pipeline.services.stack import is_ours_to_start
from tidemark.pipeline.spark.executors import REMEDY, look_at
from tidemark.pipeline.spark.session import check_answers, session_config, shared_session, without_options


def check_executors(setup: Setup) -> Iterator[Said]:
    """Asked where a Spark Connect server answers. A classic session's executors are started with each run, and say it
    then: a run computes windows without tidemark there, only slower."""
    spark = setup.settings.spark
    if spark.master is not None or is_ours_to_start(setup.settings):
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
    """What tasks on them say."""
    for machine, python, unable in look_at(session):
        if unable:
            yield warning(
                f"the executor on {machine} cannot run tidemark ({python}: {unable}): windows are "
                f"computed more slowly, and readers on Spark cannot pull; {REMEDY}"
            )
        else:
            yield ok(f"the executor on {machine} has tidemark and Polars; Spark is {session.version}")
