"""Finds in a service's log why it ended: the lines that say so may stand far above the last ones."""

import re
from pathlib import Path

LINES_AT_END = 15
REASONS_AT_MOST = 6
READ_AT_END_BYTES = 1 << 20
"""The end of a log that is looked at: a server that ran for weeks has a long one."""

REASON = re.compile(
    r"Exception in thread \"|OutOfMemoryError|Address already in use|BindException|insufficient memory|"
    r"Could not (?:create|reserve|find)|All masters are unresponsive|failed to map|SIGSEGV|SIGBUS|"
    r"^(?:Caused by:|Error:|Error occurred|java\.|org\.apache\.spark\.\S*(?:Exception|Error)\b)"
)
"""Lines by which a JVM or Spark says why it ends. A stack trace's lines begin with a tab and `at`.
Python writes `Exception in thread Thread-1:`, without quotes and without a reason: that is none."""

LONGEST = 400
"""Characters of a line that are shown."""


def log_end(log: Path, since: int = 0) -> str:
    """Quote what a log says of the end, from this byte on: the lines that say why, unless the last ones hold them
    anyway, and the last lines."""
    lines = _lines(log, since)
    last = lines[-LINES_AT_END:]
    shown = [line for line in reasons(lines) if line not in last]
    why = f"{log} says why:\n" + "\n".join(shown) + "\n" if shown else ""
    return f"{why}the end of {log}:\n" + "\n".join(last)


def why_ended(log: Path, since: int = 0) -> list[str]:
    """The lines of a log, from this byte on, that say why its service ended; none if there is no log."""
    return reasons(_lines(log, since))


def reasons(lines: list[str]) -> list[str]:
    """The newest lines that say why, each once, in their order."""
    found = [line.strip()[:LONGEST] for line in lines if REASON.search(line) and not line.startswith("\t")]
    return list(dict.fromkeys(found))[-REASONS_AT_MOST:]


def _lines(log: Path, since: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(min(since, size), size - READ_AT_END_BYTES))
        return file.read().decode(errors="replace").splitlines()
