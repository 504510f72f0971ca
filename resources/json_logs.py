"""Logs as one JSON object a line, with the ids by which one search finds a tick, its run and its Spark job.

Dagster's own JSON format is used for Dagster's loggers and for ours alike: `logger`, `level`, `timestamp`, `event`, and
what a record has beside these.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dagster._utils.log import get_structlog_json_formatter

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_sections import LogSettings

JSON = "json"

_ids: ContextVar[dict[str, str] | None] = ContextVar("ids", default=None)


@contextmanager
def ids_in_logs(**ids: str) -> Iterator[None]:
    """Have what is logged in the block, by its thread, carry these ids if the logs are JSON."""
    before = _ids.set({**(_ids.get() or {}), **ids})
    try:
        yield
    finally:
        _ids.reset(before)


def log_as(chosen: LogSettings) -> None:
    """Have this process, and those that are forked from it, log as the settings say."""
    root = logging.getLogger()
    if chosen.format != JSON or any(isinstance(handler, JsonHandler) for handler in root.handlers):
        return
    logging.captureWarnings(True)
    root.addHandler(JsonHandler())
    made = logging.getLogRecordFactory()

    def with_ids(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = made(*arguments, **named)
        record.__dict__.update(_ids.get() or {})
        return record

    logging.setLogRecordFactory(with_ids)


class JsonHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes what tidemark and libraries log; Dagster's own loggers have a handler of their own, which is told the
    format on its command line."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.INFO)
        self.setFormatter(get_structlog_json_formatter())
        self.addFilter(lambda record: not record.name.startswith("dagster"))


def ask_for_json() -> None:
    """Add Dagster's option for JSON to this process' command line, if the settings ask for it and nobody has said
    otherwise. Settings that cannot be read are reported where they are used."""
    try:
        chosen = load_settings().logs
    except InvalidSettings:
        return
    log_as(chosen)
    if chosen.format == JSON and "--log-format" not in sys.argv:
        sys.argv += ["--log-format", JSON]
