"""dagster-pyspark's own resource, with the two things that a long-lived server needs of it."""

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
    """A session that is made when it is first asked for. On a Spark Connect server it is the one that all runs share.

    An absent server is said at once (SparkUnreachable): the client alone would try for ten minutes.
    """

    server_log: str = ""
    """The log of the server that `tidemark up` starts: if no server answers, its lines that say why are shown."""

    _spark_session: Any = PrivateAttr(default=None)
    _tag: str = PrivateAttr(default_factory=lambda: f"tidemark-{uuid.uuid4().hex}")

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Have what the run starts on the server carry the run's id, by which its UI and its log tell it."""
        if context.run is not None:
            self._tag = f"tidemark-run-{context.run.run_id}"
        super().setup_for_execution(context)

    def session(self) -> SparkSession:
        """The session. Raises SparkUnreachable, ToolMissing where a classic one finds no Java or connector, or
        InvalidSettings where the executors' environment cannot be used."""
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
            said = "\n".join(why)
            raise SparkUnreachable(f"{error}. The newest errors in {self.server_log}:\n{said}") from error

    @property
    def spark_session(self) -> Any:
        """The session, made now if there is none."""
        if self._spark_session is None and self.spark_config.get("spark.remote"):
            self._spark_session = shared_session(self.spark_config)
            self._spark_session.addTag(self._tag)
        elif self._spark_session is None:
            self._spark_session = classic_session(self.spark_config)
        return self._spark_session

    @property
    def spark_context(self) -> Any:
        """The context of a classic session."""
        return self.spark_session.sparkContext

    def interrupt(self) -> None:
        """End what this run has under way on Spark, from any thread: its call fails."""
        session = self._spark_session
        if session is None:
            return
        if self.spark_config.get("spark.remote"):
            session.interruptTag(self._tag)
        else:
            session.sparkContext.cancelAllJobs()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 (Dagster's signature)
        """End what this run has started on the server, and stop the client, or the classic session."""
        if self._spark_session is not None:
            with suppress(Exception):  # the server is gone, and with it what it did
                self.interrupt()
            self._spark_session.stop()
