"""Logs as JSON: each line is an object, and has the ids of the tick in which it was written."""

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import logging, threading, warnings
from tidemark.pipeline.settings_sections import LogSettings
from tidemark.resources.json_logs import ids_in_logs, log_as

log_as(LogSettings(format="json"))
log_as(LogSettings(format="json"))
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


def lines_of(program: str) -> list[dict[str, Any]]:
    """What the program writes to its error output, each line an object."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    return list(map(json.loads, done.stderr.splitlines()))


def test_each_line_is_an_object_with_the_ids_of_its_tick_and_of_no_other_thread() -> None:
    inside, elsewhere, failed, warned = lines_of(PROGRAM)
    assert (inside["event"], inside["level"]) == ("two lines\nand words", "warning")
    assert inside["logger"] == "tidemark.somewhere"
    assert (inside["pipeline"], inside["sensor"], inside["tick"]) == ("orders", "landing", "17")
    assert elsewhere["event"] == "elsewhere"
    assert "tick" not in elsewhere
    assert "tick" not in failed
    assert "ZeroDivisionError" in failed["exception"]
    assert "old" in warned["event"]


RUN = """
import logging
import dagster as dg
from tidemark.assets.jobs.job import beating
from tidemark.pipeline.orchestrator.names import TICK
from tidemark.pipeline.settings_sections import LogSettings
from tidemark.resources.json_logs import log_as

log_as(LogSettings(format="json"))

@dg.op
def work(context):
    with beating(context):
        context.log.info("from Dagster")
        logging.getLogger("tidemark.inside").warning("from within")

@dg.job(tags={TICK: "17"})
def job():
    work()

with dg.DagsterInstance.ephemeral() as instance:
    job.execute_in_process(instance=instance)
    with dg.build_sensor_context(instance=instance) as context:
        context.log.info("from a sensor")
"""


def test_lines_of_a_run_have_its_id_and_that_of_its_tick_whoever_logs_them() -> None:
    lines = lines_of(RUN)
    ours, theirs = (next(line for line in lines if line["event"] == said) for said in ("from within", "from Dagster"))
    assert ours["run_id"] == theirs["run_id"]
    assert (ours["tick"], theirs["tick"], theirs["job_name"], theirs["step_key"]) == ("17", "17", "job", "work")
    assert "from a sensor" in [line["event"] for line in lines]
    assert not any(name.startswith("dagster_") for line in lines for name in line)
