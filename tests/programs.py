"""Programs that tests start and wait for."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ended(
    command: Sequence[str | Path],
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float = 120,
    **more: Any,
) -> "subprocess.CompletedProcess[str]":
    """A program that has ended, with its output and its exit code, whatever that is."""
    given = {"cwd": folder, "env": variables, "capture_output": True, "text": True, "timeout": seconds, "check": False}
    return subprocess.run(command, **given, **more)  # type: ignore[no-any-return,call-overload]
