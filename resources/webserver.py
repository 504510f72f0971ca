"""Dagster's UI behind `PageGuard`: `python -m tidemark.resources.webserver`, which `tidemark up` starts.

Dagster's own webserver executes mutations from any origin and under any host name, even by GET, and has no setting
against it. This serves the same application, on loopback only.
"""

import signal
from importlib.metadata import version

import uvicorn
from dagster import DagsterInstance

from tidemark.pipeline.settings import load_settings
from tidemark.resources import private
from tidemark.resources.ending import end_soon_after_a_signal
from tidemark.resources.page_guard import PageGuard

HOST = "127.0.0.1"
CONNECTIONS_END_WITHIN_SECONDS = 4
"""Longest time that open pages delay the server's end."""

WORKSPACE = "workspace.yaml"
LIVE_DATA_EVERY_MS, STATEMENT_MS, POOL_SECONDS, POOL_OVERFLOW = 2000, 15_000, 3600, 20
"""The UI's polling interval, the database's statement timeout, and its connection pooling: the defaults of Dagster's
own command."""


def serve() -> None:
    """Serve the UI of the instance in `$DAGSTER_HOME` and of the workspace in the current folder, until a signal."""
    settings = load_settings().dagster
    end_soon_after_a_signal()
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(STATEMENT_MS, POOL_SECONDS, POOL_OVERFLOW)
        target, shown = private.WorkspaceFileTarget([WORKSPACE]), version("dagster-webserver")
        with private.WorkspaceProcessContext(instance, workspace_load_target=target, version=shown) as workspace:
            app = private.create_app_from_workspace_process_context(workspace, live_data_poll_rate=LIVE_DATA_EVERY_MS)
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
