"""Dagster's launcher, able to say whether a run's process is alive.

Without it, a run whose process was killed counts as running until its time is up.
"""

import grpc
from dagster import DagsterRun, DefaultRunLauncher
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._serdes import deserialize_value

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED


class WatchedRunLauncher(DefaultRunLauncher):
    """Asks the code server that a run was launched on whether it still runs it."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """RUNNING while the code server runs it, FAILED when it does not know it (any more) or is gone.

        A code server that is there and too busy to answer has not lost its runs: they count as running. So does a run
        that no launcher started, such as that of `dagster asset materialize`: its process cannot be asked.
        """
        if run.remote_job_origin is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it runs in the process that began it")
        client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
        if client is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, "the run has not reached a code server")
        try:
            answer = deserialize_value(
                client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id), timeout=5),
                CanCancelExecutionResult,
            )
        except DagsterUserCodeUnreachableError as error:
            if isinstance(error.__cause__, grpc.RpcError) and error.__cause__.code() is DEADLINE_EXCEEDED:
                return CheckRunHealthResult(WorkerStatus.RUNNING, f"its code server is too busy to answer: {error}")
            return CheckRunHealthResult(WorkerStatus.FAILED, f"the code server that ran it does not answer: {error}")
        if answer.can_cancel:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process is alive")
        return CheckRunHealthResult(WorkerStatus.FAILED, "its process is gone: the code server does not run it")
