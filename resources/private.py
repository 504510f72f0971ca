"""Dagster's private classes and functions that tidemark uses, grouped by the consequence of lacking them.

An attribute of this module, such as `private.WorkerStatus`, is imported from Dagster on first use. No other module
imports a private name of Dagster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Any

from tidemark.pipeline.errors import DagsterPartMissing


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """A private class, function or attribute of Dagster: its module, its dotted name, and the consequence if Dagster
    lacks it."""

    module: str
    name: str
    without: str


_RUN_HEALTH = "a run whose process was killed is noticed after 5 minutes, instead of within seconds"
_EVENTS = "housekeeping does not delete Dagster's events of ticks"

_BY_LOSS = {
    # Makes the UI show the partitions of a job over windows as in progress.
    "the UI does not show the partitions of an unfinished run as in progress": {
        "AssetMaterializationPlannedData": "dagster._core.events:AssetMaterializationPlannedData"
    },
    # Dagster has no command that deletes events by age, and only an event log in SQL can be pruned. On SQLite, events
    # of ticks are in a file beside the index as well.
    _EVENTS: {
        "SqlEventLogStorage": "dagster._core.storage.event_log.sql_event_log:SqlEventLogStorage",
        "index_connection": "dagster._core.storage.event_log.sql_event_log:SqlEventLogStorage.index_connection",
        "run_connection": "dagster._core.storage.event_log.sql_event_log:SqlEventLogStorage.run_connection",
        "is_run_sharded": "dagster._core.storage.event_log.sql_event_log:SqlEventLogStorage.is_run_sharded",
    },
    # Dagster deletes a run's events, but not the SQLite file that held them.
    "the empty SQLite files of deleted runs are not deleted": {
        "path_for_shard": "dagster._core.storage.event_log.sqlite:SqliteEventLogStorage.path_for_shard"
    },
    # The launcher asks a run's code server, and returns the answer in these types.
    _RUN_HEALTH: {
        "WorkerStatus": "dagster._core.launcher.base:WorkerStatus",
        "CheckRunHealthResult": "dagster._core.launcher.base:CheckRunHealthResult",
        "DagsterUserCodeUnreachableError": "dagster._core.errors:DagsterUserCodeUnreachableError",
        "CanCancelExecutionRequest": "dagster._grpc.types:CanCancelExecutionRequest",
        "CanCancelExecutionResult": "dagster._grpc.types:CanCancelExecutionResult",
        "get_current_runs": "dagster._grpc.client:DagsterGrpcClient.get_current_runs",
        "client_of_run": "dagster._core.launcher.default_run_launcher:"
        "DefaultRunLauncher._get_grpc_client_for_termination",
    },
    # The code server forks runs from a process that has imported the definitions, and ends within seconds.
    "tidemark's code server does not start; use `dagster api grpc`, whose runs start more slowly": {
        "DagsterApiServer": "dagster._grpc.server:DagsterApiServer",
        "served_module": "dagster._grpc.server:DagsterApiServer._loadable_target_origin",
        "starts_runs": "dagster._grpc.server:DagsterApiServer._mp_ctx",
        "server_ends": "dagster._grpc.server:DagsterApiServer._server_termination_event",
    },
    # The UI as an application, which the guard wraps.
    "tidemark's web server does not start; use `dagster-webserver`, which has no guard against other pages": {
        "WorkspaceProcessContext": "dagster._core.workspace.context:WorkspaceProcessContext",
        "WorkspaceFileTarget": "dagster._core.workspace.load_target:WorkspaceFileTarget",
        "create_app_from_workspace_process_context": "dagster_webserver.app:create_app_from_workspace_process_context",
    },
    # Dagster has no setting for the format of the logs of ticks and of runs.
    "the code server does not start with logs.format = json; set it to text": {
        "console_of_ticks": "dagster._core.definitions.instigation_logger:create_console_logger",
        "console_of_runs": "dagster._loggers:create_console_logger",
    },
}

PARTS = {
    name: PrivatePart(*address.partition(":")[::2], without)
    for without, parts in _BY_LOSS.items()
    for name, address in parts.items()
}

RUN_HEALTH = tuple(name for name, part in PARTS.items() if part.without is _RUN_HEALTH)
EVENTS = tuple(name for name, part in PARTS.items() if part.without is _EVENTS)

EVENT_TABLES = {
    "event_logs": ("id", "run_id", "event", "dagster_event_type", "timestamp", "asset_key", "partition"),
    "asset_event_tags": ("event_id",),
    "asset_check_executions": ("run_id", "asset_key", "check_name", "evaluation_event_storage_id"),
}
"""The tables of Dagster's event log, with the columns that housekeeping needs. If one of them is missing,
housekeeping deletes no events."""


def __getattr__(name: str) -> Any:
    """Return the private object of Dagster with this name in PARTS. Raises DagsterPartMissing if Dagster lacks it."""
    if name not in PARTS:
        raise AttributeError(f"{__name__} has no {name}")
    return found(PARTS[name])


@cache
def found(part: PrivatePart) -> Any:
    """Return a private class, function or attribute of Dagster. Raises DagsterPartMissing if there is none."""
    try:
        return reduce(_attribute, part.name.split("."), import_module(part.module))
    except (ImportError, AttributeError) as error:  # or a file of the user's hides a module that Dagster imports
        raise missing(f"{part.module}.{part.name}", part.without) from error


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute of `owner`. If `owner` is a class that sets the attribute only in its `__init__`, return the
    attribute's name instead, because the class itself has no value."""
    if isinstance(owner, type) and not hasattr(owner, name) and name in owner.__init__.__code__.co_names:  # type: ignore[misc]
        return name
    return getattr(owner, name)


def replace(name: str, by: Any) -> None:
    """Replace a private part in its module. Raises DagsterPartMissing if Dagster lacks it."""
    found(PARTS[name])
    setattr(import_module(PARTS[name].module), PARTS[name].name, by)


def missing(what: str, without: str) -> DagsterPartMissing:
    """Return an error for the missing part `what`. `without` is the consequence, worded as a clause after "so"."""
    return DagsterPartMissing(f"Dagster {version('dagster')} has no {what}, so {without}")


def why_missing(names: tuple[str, ...]) -> str | None:
    """Return the error message about the first of these private parts that Dagster lacks; None if it has all."""
    try:
        for name in names:
            found(PARTS[name])
    except DagsterPartMissing as error:
        return str(error)
    return None


def command(name: str) -> Callable[[], None]:
    """Return the function of an installed command: `dagster` or `dagster-daemon`."""
    (entry,) = entry_points(group="console_scripts", name=name)
    loaded: Callable[[], None] = entry.load()
    return loaded
