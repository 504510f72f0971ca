"""The Spark session as a Dagster resource. It extends dagster-pyspark's resource."""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from tidemark.local.services.processes import why_ended
from tidemark.pipeline.errors import SparkUnreachable
from tidemark.pipeline.spark.session import check_answers, classic_session, shared_session


class SparkResource(LazyPySparkResource):  # type: ignore[misc]
    """A Spark session that is created on first use. On a Spark Connect server, all runs share one session.

    If the server is unreachable, `session` raises SparkUnreachable immediately. Spark's client would retry for ten
    minutes.
    """

    server_log: str = ""
    """The log file of the Spark Connect server that `tidemark up` starts. If the server is down, the error message
    quotes the newest errors in this file."""

    _spark_session: Any = PrivateAttr(default=None)
    _others: Any = PrivateAttr(default=None)  # a classic session of other code in this process
    _tag: str = PrivateAttr(default_factory=lambda: f"tidemark-{uuid.uuid4().hex}")

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Tag the run's work on Spark with the run's id."""
        if context.run is not None:
            self._tag = f"tidemark-run-{context.run.run_id}"
        super().setup_for_execution(context)

    def session(self) -> SparkSession:
        """Return the session. Raises SparkUnreachable if the server does not answer, ToolMissing if a classic session
        lacks Java or the connector, and InvalidSettings if the archive for executors is unusable."""
        if remote := self.spark_config.get("spark.remote"):
            self._check_answers(remote)
        session: SparkSession = self.spark_session
        if not remote:
            session.sparkContext.setJobGroup(self._tag, "tidemark")
        return session

    def _check_answers(self, remote: str) -> None:
        try:
            check_answers(remote)
        except SparkUnreachable as error:
            why = why_ended(Path(self.server_log)) if self.server_log else []
            if not why:
                raise
            raise SparkUnreachable("\n".join([f"{error}. The newest errors in {self.server_log}:", *why])) from error

    @property
    def spark_session(self) -> Any:
        if self._spark_session is None and self.spark_config.get("spark.remote"):
            self._spark_session = shared_session(self.spark_config)
            self._spark_session.addTag(self._tag)
        elif self._spark_session is None:
            self._others = SparkSession.getActiveSession()
            self._spark_session = classic_session(self.spark_config, self._others)
        return self._spark_session

    @property
    def spark_context(self) -> Any:
        return self.spark_session.sparkContext

    def interrupt(self) -> None:
        """Cancel this run's work on Spark. A pending call then fails. Any thread may call this. Raises SparkUnreachable
        at once if the server does not answer; Spark's client would retry for ten minutes."""
        session = self._spark_session
        if session is None:
            return
        if remote := self.spark_config.get("spark.remote"):
            check_answers(remote)
            session.interruptTag(self._tag)
        elif self._others is None:
            session.sparkContext.cancelAllJobs()
        else:
            session.sparkContext.cancelJobGroup(self._tag)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 (Dagster's signature)
        """Cancel this run's work on Spark. Also stop the client or the classic session, unless others use it too."""
        if self._spark_session is not None:
            with suppress(Exception):  # the server may be gone, and the work with it
                self.interrupt()
            if self._others is None:
                self._spark_session.stop()
