"""Serves Dagster's UI behind `PageGuard`, on loopback only. `tidemark up` starts it with `python -m
tidemark.resources.webserver`.

Dagster's own webserver executes mutations from any origin and under any host name, even by GET, and has no setting
to prevent this.
"""

import signal
from collections.abc import Iterable
from importlib.metadata import version
from urllib.parse import urlsplit

import uvicorn
from dagster import DagsterInstance
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.pipeline.machine import host_name, is_ours
from tidemark.pipeline.settings import load_settings
from tidemark.resources import private
from tidemark.resources.daemon import end_soon_after_a_signal
from tidemark.resources.memory import load_revisions_once

HOST = "127.0.0.1"
CONNECTIONS_END_WITHIN_SECONDS = 4
"""Maximum time that open pages delay the server's end."""

WORKSPACE = "workspace.yaml"
LIVE_DATA_EVERY_MS, STATEMENT_MS, POOL_SECONDS, POOL_OVERFLOW = 2000, 15_000, 3600, 20
"""The UI's polling interval, the database's statement timeout, and its connection pool, as in `dagster-webserver`."""


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NEEDS_PERMISSION = frozenset({"application/json", "application/graphql"})
"""Content types that a browser sends to another origin only if that origin grants a preflight request first. The UI
grants none."""

GRAPHQL = "/graphql"
NOT_FRAMED = ("content-security-policy", "frame-ancestors 'self'")
"""The header that forbids other sites from showing the UI in a frame. It prevents clickjacking."""


class PageGuard:
    """An ASGI middleware that protects a page on loopback against requests by other pages in the same browser.

    A request must name one of the page's hosts, and come from the page's own origin or by a link. A request that may
    change something must have a content type from NEEDS_PERMISSION. All others get 403, 405 or 415, and the reason.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str] = ()) -> None:
        """Guard `app`. `allowed_hosts` are additional host names, without ports, under which users reach the page."""
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self.refusal(HTTPConnection(scope))
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1]})
        else:
            status, why = refused
            await PlainTextResponse(f"{why}\n", status)(scope, receive, send)

    def refusal(self, asked: HTTPConnection) -> tuple[int, str] | None:
        """Return the status and the reason if the request is refused, otherwise None."""
        headers, method = asked.headers, asked.scope.get("method", "GET")
        hosts = headers.getlist("host")
        if not is_ours(hosts, self._allowed):
            return 403, (
                f"the host {', '.join(hosts)!a} is not a host name of this page; if users reach the page by that name, "
                "add it to dagster.allowed_hosts in the settings"
            )
        is_a_link = headers.get("sec-fetch-mode") == "navigate" and method in SAFE_METHODS
        comes_from_here = headers.get("sec-fetch-site", "none") in ("none", "same-origin") or is_a_link
        if not (comes_from_here and all(self._is_own(origin, hosts[0]) for origin in headers.getlist("origin"))):
            return 403, "the request comes from a page of another origin; only this page may send requests"
        if method not in SAFE_METHODS:
            types = [one.partition(";")[0].strip().lower() for one in headers.getlist("content-type")]
            if not types or not NEEDS_PERMISSION.issuperset(types):
                return 415, "send the request with the content type application/json"
        elif asked.scope["type"] == "http" and asked.url.path.rstrip("/").endswith(GRAPHQL):
            if "text/html" in headers.get("accept", ""):  # it loads the page GraphiQL, which executes nothing by itself
                return None
            return 405, "a GET executes nothing; send the query by POST, with the content type application/json"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return True if an origin is the requested host, or a host that the settings allow."""
        try:
            named = urlsplit(origin)
        except ValueError:
            return False
        if named.scheme not in ("http", "https"):
            return False
        return named.netloc.lower() == host.lower() or host_name(named.netloc) in self._allowed


def serve() -> None:
    """Serve the UI of the instance in `$DAGSTER_HOME` and of the workspace in the current folder, until a signal."""
    settings = load_settings().dagster
    end_soon_after_a_signal()
    load_revisions_once()
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(STATEMENT_MS, POOL_SECONDS, POOL_OVERFLOW)
        target, shown = private.WorkspaceFileTarget([WORKSPACE]), version("dagster-webserver")
        with private.WorkspaceProcessContext(instance, workspace_load_target=target, version=shown) as workspace:
            app = private.create_app_from_workspace_process_context(workspace, live_data_poll_rate=LIVE_DATA_EVERY_MS)
            uvicorn.run(
                PageGuard(app, settings.allowed_hosts),
                host=HOST,
                port=settings.web_port,
                log_level="warning",
                headers=[NOT_FRAMED],
                timeout_graceful_shutdown=CONNECTIONS_END_WITHIN_SECONDS,
            )


if __name__ == "__main__":
    serve()
