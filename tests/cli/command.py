"""The `tidemark` command for tests: in this process, or as the program that a person starts.

A program needs seconds to start. It is for what a test in one process cannot show: signals, threads that are left, the
exit itself.
"""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.programs import ended
from tidemark.pipeline.cli.app import run_command

TIDEMARK = str(Path(sys.executable).parent / "tidemark")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int


def said_here(folder: Path, arguments: tuple[str, ...], variables: Mapping[str, str]) -> Said:
    """Run the command in this process, in the folder, with these variables alone in the environment."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    environment = patch.dict(os.environ, dict(variables), clear=True)
    with environment, contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = run_command(arguments)
    return Said(_text(out), _text(err), code)


def said_by_the_program(folder: Path, arguments: tuple[str, ...], variables: Mapping[str, str]) -> Said:
    """Start the program in the folder, with these variables alone in its environment, and wait for its end."""
    done = ended([TIDEMARK, *arguments], folder, variables)
    return Said(done.stdout, done.stderr, done.returncode)


def _text(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode()
