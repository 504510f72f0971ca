"""Programs and archives that tests need beside Python packages: each is made or fetched once, into a cache that all
checkouts share, `tidemark-tests` below `$XDG_CACHE_HOME` or `~/.cache`."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidemark.pipeline.errors import ServiceFailed

FETCH_SECONDS = 1200.0


def cache() -> Path:
    """The folder that all checkouts on this machine share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemark-tests"


@contextmanager
def made_once(file: Path) -> Iterator[Path | None]:
    """A new folder to make the file in, or None if it is there. Parallel tests wait for the first to make it; a file
    moves into the cache when it is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            yield Path(folder)


def run_in(folder: Path, command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command that makes or fetches something, away from the project, so that it reads no build file of it.
    Raises ServiceFailed."""
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=os.environ | (environment or {}),
            check=True,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise ServiceFailed(f"`{' '.join(command)}` failed: {(error.stderr or error.stdout).strip()}") from error
