"""Logs as one JSON object per line, with ids that link a tick, its run and its Spark job.

The lines have the fields of Dagster's own JSON format (`logger`, `level`, `timestamp` and `event`), plus ids and a
traceback.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from structlog.contextvars import get_contextvars
from structlog.processors import JSONRenderer, StackInfoRenderer, TimeStamper, format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_sections import LogSettings
from tidemark.resources import private

JSON = "json"
OF_A_RUN = ("run_id", "job_name", "step_key")
"""Names of Dagster's fields that are kept in the log lines of a run. Dagster's other fields are dropped."""


def log_as(chosen: LogSettings) -> None:
    """If `chosen` asks for JSON, set up JSON logs for this process and its forks. Further calls do nothing."""
    root = logging.getLogger()
    if chosen.format != JSON or any(isinstance(handler, JsonHandler) for handler in root.handlers):
        return
    logging.captureWarnings(True)
    rest = JsonHandler()
    rest.setLevel(logging.INFO)
    # Dagster sets up handlers for these loggers.
    rest.addFilter(lambda record: record.name.partition(".")[0] not in ("dagster", "dagster-webserver"))
    root.addHandler(rest)
    # Ticks and runs log to a console logger that Dagster creates without a setting for its format.
    for console in ("console_of_ticks", "console_of_runs"):
        private.replace(console, json_console)


def json_console(name: str, level: str | int) -> logging.Logger:
    """Return the logger of a tick or a run. It writes to standard error."""
    console = logging.Logger(name, level)
    console.addHandler(JsonHandler())
    return console


class JsonHandler(logging.StreamHandler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        plain = ProcessorFormatter.remove_processors_meta
        shown: list[Any] = [plain, _with_ids_of_a_run, format_exc_info, JSONRenderer()]
        given: list[Any] = [_with_extra, add_logger_name, add_log_level, TimeStamper(fmt="iso"), StackInfoRenderer()]
        self.setFormatter(ProcessorFormatter(foreign_pre_chain=given, processors=shown))


def _with_extra(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the fields of a record's `extra`, except those that the line already has."""
    return {**event, **ExtraAdder()(logger, name, {"_record": event["_record"]}), **event}


def _with_ids_of_a_run(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids that structlog's `bound_contextvars` has bound. Of Dagster's own fields, keep only the run's ids and
    the original message."""
    event.update(get_contextvars())  # a handler is called in the thread that logs
    if isinstance(known := event.pop("dagster_meta", None), dict):
        event["event"] = known.get("orig_message") or event["event"]
        event.update({name: known[name] for name in OF_A_RUN if known.get(name)})
    return {name: value for name, value in event.items() if not name.startswith("dagster_")}


def ask_for_json() -> None:
    """Set up the logs as the settings say. If they ask for JSON, add Dagster's option for JSON to this process's
    command line, unless the command line already names a log format. Invalid settings are ignored, because other code
    reports them."""
    try:
        chosen = load_settings().logs
    except InvalidSettings:
        return
    log_as(chosen)
    if chosen.format == JSON and "--log-format" not in sys.argv:
        sys.argv += ["--log-format", JSON]
