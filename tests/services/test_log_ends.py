"""Why a service ended, from its log."""

from pathlib import Path

import pytest

from tidemark.local.services.processes import LINES_AT_END, REASONS_AT_MOST, log_end, why_ended

TRACE = [f"\tat org.apache.spark.Class{number}.call(Class.scala:{number})" for number in range(40)]
WHY = [
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    "java.net.BindException: Address already in use: Service 'sparkDriver' failed after 16 retries",
    "Caused by: java.io.IOException: No space left on device",
    "# There is insufficient memory for the Java Runtime Environment to continue.",
    "Error: Could not create the Java Virtual Machine.",
    "org.apache.spark.SparkIllegalArgumentException: [INVALID_DRIVER_MEMORY] System memory 1 must be at least 2",
    "26/11/23 07:00:00 ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.",
]


def log_of(folder: Path, *lines: str) -> Path:
    log = folder / "spark-connect.log"
    log.write_text("\n".join(lines) + "\n")
    return log


@pytest.mark.parametrize("why", WHY)
def test_the_line_that_says_why_is_shown_although_a_stack_trace_follows(tmp_path: Path, why: str) -> None:
    log = log_of(tmp_path, "26/11/23 06:59:59 INFO Server: all is well", why, *TRACE)
    assert why_ended(log) == [why]
    said = log_end(log)
    assert said.startswith(f"{log} says why:\n{why}\nthe end of {log}:\n\tat org")
    assert said.count("\n\tat org") == LINES_AT_END


def test_only_the_start_that_failed_counts_and_of_many_reasons_the_newest(tmp_path: Path) -> None:
    log = log_of(tmp_path, WHY[0], *TRACE)
    earlier = log.stat().st_size
    assert why_ended(log, earlier) == []
    with log.open("a") as more:
        more.write("\n".join([f"Caused by: {number}" for number in range(20) for _ in range(2)]))
    newest = [f"Caused by: {number}" for number in range(20 - REASONS_AT_MOST, 20)]
    assert why_ended(log, earlier) == newest
