"""Dagster's run launcher, extended to check whether a run's process is alive. With Dagster's own launcher, a run whose
process was killed counts as running until its maximum time has passed."""

from typing import Any

import grpc
from dagster import DagsterRun, DefaultRunLauncher, deserialize_value

from tidemark.resources import private

UNTOLD = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "its code server is too busy to answer",
    grpc.StatusCode.UNIMPLEMENTED: "`dagster dev` or `dagster code-server` may run it in an earlier server",
}
"""Errors of a code server that do not tell whether it executes a run, and what they mean."""


class WatchedRunLauncher(DefaultRunLauncher):
    """A run launcher that asks a run's code server whether the run is alive."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return private.why_missing(private.RUN_HEALTH) is None

    def check_run_worker_health(self, run: DagsterRun) -> Any:
        """Return whether a run is alive, as reported by its code server.

        - RUNNING if the server executes the run, is too busy to answer, or is one of Dagster's proxies. (A proxy asks
          only the server that it loaded last.) Also RUNNING for a run that no launcher started, such as a run of
          `dagster asset materialize`, because its process cannot be queried.
        - FAILED if the server does not execute the run, or does not answer for another reason.
        - UNKNOWN if the run has not reached a code server.
        """
        answer, status = private.CheckRunHealthResult, private.WorkerStatus
        if run.remote_job_origin is None:
            return answer(status.RUNNING, "it runs in the process that started it")
        if (client := private.client_of_run(self, run.run_id)) is None:
            return answer(status.UNKNOWN, "the run has not reached a code server")
        try:
            asked = deserialize_value(
                client.can_cancel_execution(private.CanCancelExecutionRequest(run_id=run.run_id), timeout=5),
                private.CanCancelExecutionResult,
            )
            if not asked.can_cancel:
                private.get_current_runs(client)  # a proxy does not implement this
        except private.DagsterUserCodeUnreachableError as error:
            if isinstance(error.__cause__, grpc.RpcError) and error.__cause__.code() in UNTOLD:
                return answer(status.RUNNING, f"{UNTOLD[error.__cause__.code()]}: {error}")
            return answer(status.FAILED, f"the code server that ran it does not answer: {error}")
        if asked.can_cancel:
            return answer(status.RUNNING, "its process is alive")
        return answer(status.FAILED, "its process is gone: the code server does not run it")
