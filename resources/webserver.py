"""Dagster's UI behind `PageGuard`: `python -m tidemark.resources.webserver`, which `tidemark up` starts.

Dagster's own webserver carries out mutations from any origin and under any host name, by GET as well, and has no
setting for it. This serves the same application, on loopback only.
"""

import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.interrupts import setup_interrupt_handlers
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.cli import DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_MAX_OVERFLOW, DEFAULT_POOL_RECYCLE
from dagster_webserver.version import __version__

from tidemark.pipeline.settings import load_settings
from tidemark.resources.ending import end_soon_after_a_signal
from tidemark.resources.page_guard import PageGuard

HOST = "127.0.0.1"
CONNECTIONS_END_WITHIN_SECONDS = 4
"""How long open pages hold the server once it is asked to end."""

WORKSPACE = "workspace.yaml"
LIVE_DATA_EVERY_MS = 2000
"""How often the UI asks for what changed: the default of Dagster's own command."""


def serve() -> None:
    """Serve the UI of the instance in `$DAGSTER_HOME` and of the workspace in the current folder, until a signal."""
    settings = load_settings().dagster
    end_soon_after_a_signal()
    setup_interrupt_handlers()
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
        target = WorkspaceFileTarget([WORKSPACE])
        with WorkspaceProcessContext(instance, workspace_load_target=target, version=__version__) as workspace:
            app = create_app_from_workspace_process_context(workspace, live_data_poll_rate=LIVE_DATA_EVERY_MS)
            guarded = PageGuard(app, settings.allowed_hosts)
            uvicorn.run(
                guarded,
                host=HOST,
                port=settings.web_port,
                log_level="warning",
                timeout_graceful_shutdown=CONNECTIONS_END_WITHIN_SECONDS,
            )


if __name__ == "__main__":
    serve()
