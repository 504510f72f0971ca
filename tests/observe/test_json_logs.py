"""Logs as JSON: each line is an object, and has the ids of the tick in which it was written."""

import json
import subprocess
import sys

PROGRAM = """
import logging, threading, warnings
from tidemark.pipeline.settings_sections import LogSettings
from tidemark.resources.json_logs import ids_in_logs, log_as

log_as(LogSettings(format="FORMAT"))
log_as(LogSettings(format="FORMAT"))
logger = logging.getLogger("tidemark.somewhere")
with ids_in_logs(pipeline="orders", sensor="landing"), ids_in_logs(tick="17"):
    logger.warning("two lines\\nand %s", "words")
    threading.Thread(target=lambda: logger.warning("elsewhere")).start()
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("it failed")
warnings.warn("old")
"""


def stderr_of(format_: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("FORMAT", format_)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_each_line_is_an_object_with_the_ids_of_its_tick_and_of_no_other_thread() -> None:
    inside, elsewhere, failed, warned = map(json.loads, stderr_of("json"))
    assert (inside["event"], inside["level"], inside["logger"]) == (
        "two lines\nand words",
        "warning",
        "tidemark.somewhere",
    )
    assert (inside["pipeline"], inside["sensor"], inside["tick"]) == ("orders", "landing", "17")
    assert elsewhere["event"] == "elsewhere"
    assert "tick" not in elsewhere
    assert "tick" not in failed
    assert "ZeroDivisionError" in failed["exception"]
    assert "old" in warned["event"]


def test_as_text_nothing_is_changed() -> None:
    assert stderr_of("text")[:2] == ["two lines", "and words"]
