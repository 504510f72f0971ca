"""The parts of Dagster that have no public name: each with its reason, and the loss where a Dagster lacks it.

`private.WorkerStatus` imports the part when it is first used. No other module imports one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Any

from tidemark.pipeline.errors import DagsterPartMissing


@dataclass(frozen=True, slots=True)
class Part:
    """A module, a name in it with its attributes, the reason for its use, and the loss without it."""

    module: str
    name: str
    reason: str
    without: str


_RUN_HEALTH = "a run whose process was killed is found by its silence, after 5 minutes instead of seconds"
_FORKS = "tidemark's code server does not start; `dagster api grpc` does its work, with slower runs"
_WEB = "tidemark's web server does not start; `dagster-webserver` shows the same, without the guard against other pages"
_EVENTS = "housekeeping leaves Dagster's events of ticks where they are"
_LOGS = "the code server does not start with `logs.format = json`; with the other format it does"

PARTS = {
    "AssetMaterializationPlannedData": Part(
        "dagster._core.events",
        "AssetMaterializationPlannedData",
        "a job over windows shows partitions as in progress",
        "partitions look untouched until they are computed",
    ),
    "SqlEventLogStorage": Part(
        "dagster._core.storage.event_log.sql_event_log",
        "SqlEventLogStorage",
        "only an event log in SQL is pruned, by its own connections",
        _EVENTS,
    ),
    "index_connection": Part(
        "dagster._core.storage.event_log.sql_event_log",
        "SqlEventLogStorage.index_connection",
        "Dagster has no command that deletes events by age",
        _EVENTS,
    ),
    "run_connection": Part(
        "dagster._core.storage.event_log.sql_event_log",
        "SqlEventLogStorage.run_connection",
        "on SQLite, events of ticks are in a file beside the index as well",
        _EVENTS,
    ),
    "is_run_sharded": Part(
        "dagster._core.storage.event_log.sql_event_log",
        "SqlEventLogStorage.is_run_sharded",
        "says whether there is such a file",
        _EVENTS,
    ),
    "path_for_shard": Part(
        "dagster._core.storage.event_log.sqlite",
        "SqliteEventLogStorage.path_for_shard",
        "Dagster deletes a run's events, and not the SQLite file that held them",
        "empty files of deleted runs stay",
    ),
    "WorkerStatus": Part(
        "dagster._core.launcher.base",
        "WorkerStatus",
        "a launcher says with it whether a run's process lives",
        _RUN_HEALTH,
    ),
    "CheckRunHealthResult": Part(
        "dagster._core.launcher.base", "CheckRunHealthResult", "a launcher's answer about a run's process", _RUN_HEALTH
    ),
    "DagsterUserCodeUnreachableError": Part(
        "dagster._core.errors", "DagsterUserCodeUnreachableError", "tells a code server that is gone", _RUN_HEALTH
    ),
    "CanCancelExecutionRequest": Part(
        "dagster._grpc.types",
        "CanCancelExecutionRequest",
        "asks a code server whether it still runs a run",
        _RUN_HEALTH,
    ),
    "CanCancelExecutionResult": Part(
        "dagster._grpc.types", "CanCancelExecutionResult", "the code server's answer", _RUN_HEALTH
    ),
    "client_of_run": Part(
        "dagster._core.launcher.default_run_launcher",
        "DefaultRunLauncher._get_grpc_client_for_termination",
        "a client of the code server that a run was launched on",
        _RUN_HEALTH,
    ),
    "DagsterApiServer": Part(
        "dagster._grpc.server", "DagsterApiServer", "it starts runs by fork, which saves seconds a run", _FORKS
    ),
    "served_module": Part(
        "dagster._grpc.server",
        "DagsterApiServer._loadable_target_origin",
        "the process that is forked has imported it",
        _FORKS,
    ),
    "starts_runs": Part("dagster._grpc.server", "DagsterApiServer._mp_ctx", "starts the processes of runs", _FORKS),
    "server_ends": Part(
        "dagster._grpc.server", "DagsterApiServer._server_termination_event", "the server ends within seconds", _FORKS
    ),
    "WorkspaceProcessContext": Part(
        "dagster._core.workspace.context", "WorkspaceProcessContext", "the UI's workspace", _WEB
    ),
    "WorkspaceFileTarget": Part(
        "dagster._core.workspace.load_target", "WorkspaceFileTarget", "reads workspace.yaml", _WEB
    ),
    "create_app_from_workspace_process_context": Part(
        "dagster_webserver.app",
        "create_app_from_workspace_process_context",
        "the UI as an application, which the guard stands in front of",
        _WEB,
    ),
    "console_of_ticks": Part(
        "dagster._core.definitions.instigation_logger",
        "create_console_logger",
        "Dagster has no setting for the format of what ticks log",
        _LOGS,
    ),
    "console_of_runs": Part("dagster._loggers", "create_console_logger", "nor for that of runs", _LOGS),
}

RUN_HEALTH = tuple(name for name, part in PARTS.items() if part.without is _RUN_HEALTH)
EVENTS = tuple(name for name, part in PARTS.items() if part.without is _EVENTS)

EVENT_TABLES = {
    "event_logs": ("id", "run_id", "event", "dagster_event_type", "timestamp", "asset_key"),
    "asset_event_tags": ("event_id",),
    "asset_check_executions": ("run_id", "asset_key", "check_name", "evaluation_event_storage_id"),
}
"""Tables of the event log, with the columns that housekeeping uses; without one of them it leaves the events."""


def __getattr__(name: str) -> Any:
    """The part of this name. Raises DagsterPartMissing."""
    if name not in PARTS:
        raise AttributeError(f"{__name__} has no {name}")
    return found(PARTS[name])


@cache
def found(part: Part) -> Any:
    """What Dagster has under a part's name. Raises DagsterPartMissing."""
    try:
        return reduce(_attribute, part.name.split("."), import_module(part.module))
    except (ImportError, AttributeError):
        raise missing(f"{part.module}.{part.name}", part.without) from None


def _attribute(owner: Any, name: str) -> Any:
    """An attribute, or its name if instances get it when they are made."""
    if isinstance(owner, type) and not hasattr(owner, name) and name in owner.__init__.__code__.co_names:  # type: ignore[misc]
        return name
    return getattr(owner, name)


def replace(name: str, by: Any) -> None:
    """Put something in a part's place, in the module that uses it. Raises DagsterPartMissing."""
    found(PARTS[name])
    setattr(import_module(PARTS[name].module), PARTS[name].name, by)


def missing(what: str, without: str) -> DagsterPartMissing:
    """The error that names what this Dagster lacks."""
    return DagsterPartMissing(f"Dagster {version('dagster')} has no {what}, so {without}")


def why_missing(names: tuple[str, ...]) -> str | None:
    """The first of these parts that this Dagster lacks, in a sentence; None if it has them all."""
    try:
        for name in names:
            found(PARTS[name])
    except DagsterPartMissing as error:
        return str(error)
    return None


def command(name: str) -> Callable[[], None]:
    """The function of a command that Dagster installs, which is public: `dagster` or `dagster-daemon`."""
    (entry,) = entry_points(group="console_scripts", name=name)
    loaded: Callable[[], None] = entry.load()
    return loaded
