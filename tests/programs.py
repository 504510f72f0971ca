"""Programs that tests start and wait for."""

import subprocess
import sys
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


def install(python: Path, *what: str | Path) -> None:
    """Install packages for a Python as `tools/install.sh` does: by uv, from its cache if that has them, or by pip."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    for command in ([*uv, "--offline", *what], [*uv, *what]):
        if ended(command, seconds=600).returncode == 0:
            return
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *what]
    subprocess.run(pip, check=True, timeout=600)


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a project into an empty folder, as `install` does: from its sdist, where there is uv."""
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder, source]
    if ended(uv, seconds=300).returncode != 0:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
        subprocess.run(pip, check=True, timeout=300)
    (found,) = folder.glob("*.whl")
    return found
