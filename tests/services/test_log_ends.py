"""Why a service ended, from its log."""

from pathlib import Path

import pytest

from tidemark.local.services.processes import LINES_AT_END, log_end, why_ended

TRACE = [f"\tat org.apache.spark.Class{number}.call(Class.scala:{number})" for number in range(40)]
WHY = [
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    "java.net.BindException: Address already in use: Service 'sparkDriver' failed after 16 retries",
    "# There is insufficient memory for the Java Runtime Environment to continue.",
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
