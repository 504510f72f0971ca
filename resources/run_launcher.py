"""Dagster's launcher, extended to check whether a run's process is alive.

Without it, a run whose process was killed counts as running until its time is up.
"""

from typing import Any

import grpc
from dagster import DagsterRun, DefaultRunLauncher, deserialize_value

from tidemark.resources import private

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED


class WatchedRunLauncher(DefaultRunLauncher):
    """Asks the code server that a run was launched on whether the run is still alive."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return private.why_missing(private.RUN_HEALTH) is None

    def check_run_worker_health(self, run: DagsterRun) -> Any:
        """Return RUNNING while the code server runs it, FAILED if the server does not know it (any more) or is gone.

        A code server that is too busy to answer has not lost its runs: they count as running. So does a run that no
        launcher started, such as that of `dagster asset materialize`: its process cannot be queried.
        """
        answer, status = private.CheckRunHealthResult, private.WorkerStatus
        if run.remote_job_origin is None:
            return answer(status.RUNNING, "it runs in the process that began it")
        client = private.client_of_run(self, run.run_id)
        if client is None:
            return answer(status.UNKNOWN, "the run has not reached a code server")
        try:
            asked = deserialize_value(
                client.can_cancel_execution(private.CanCancelExecutionRequest(run_id=run.run_id), timeout=5),
                private.CanCancelExecutionResult,
            )
        except private.DagsterUserCodeUnreachableError as error:
            if isinstance(error.__cause__, grpc.RpcError) and error.__cause__.code() is DEADLINE_EXCEEDED:
                return answer(status.RUNNING, f"its code server is too busy to answer: {error}")
            return answer(status.FAILED, f"the code server that ran it does not answer: {error}")
        if asked.can_cancel:
            return answer(status.RUNNING, "its process is alive")
        return answer(status.FAILED, "its process is gone: the code server does not run it")
