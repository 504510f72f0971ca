"""dagster-pyspark's own resource, with the two things that a long-lived server needs of it."""

import os
import sys
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from pipeline.spark.java import set_java_home
from pipeline.spark.session import check_answers


class SparkResource(LazyPySparkResource):  # type: ignore[misc]
    """A session that is made when it is first asked for, and stopped when the run ends.

    An absent server is said at once (SparkUnreachable): the client alone would try for ten minutes.
    """

    def session(self) -> SparkSession:
        """The session. Raises SparkUnreachable, or ToolMissing where a classic session finds no Java."""
        if remote := self.spark_config.get("spark.remote"):
            check_answers(remote)
        else:
            set_java_home()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for what runs in Python on it
        session: SparkSession = self.spark_session
        return session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 (Dagster's signature)
        """Give the session back, so that its state on the server ends with the run."""
        started: Any = self._spark_session
        if started is not None:
            started.stop()
