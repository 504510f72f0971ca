"""Programs and JARs that the Cloud Storage tests need beside Python packages.

They are built or fetched once a version, into a cache that all checkouts share: `tidemark-tests` below
`$XDG_CACHE_HOME` or `~/.cache`. `python -m tests.gcs.tools` fills it beforehand; from nothing that takes some minutes.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ServiceFailed, ToolMissing
from tidemark.pipeline.spark.connector import CONNECTOR, fetch

SERVER_MODULE = "github.com/fsouza/fake-gcs-server"
SERVER_VERSION = "v1.56.1"
FETCH_SECONDS = 1200.0


def fake_gcs_server() -> Path:
    """The server's program; it is compiled if the cache lacks it. Raises ToolMissing without Go, ServiceFailed."""
    program = cache() / f"fake-gcs-server-{SERVER_VERSION}"
    with made_once(program) as folder:
        if folder is not None:
            go = _required("go", "install Go 1.24 or later, and put its `go` on the PATH")
            _run([go, "install", f"{SERVER_MODULE}@{SERVER_VERSION}"], folder, {"GOBIN": str(folder)})
            (folder / "fake-gcs-server").rename(program)
    return program


def gcs_connector() -> Path:
    """The JAR that lets Spark use `gs://`, as `tidemark connector` fetches it, into the cache of the tests. Raises
    ToolMissing."""
    jar = cache() / CONNECTOR.name
    fetch(SystemClock(), jar)
    return jar


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


def _required(program: str, remedy: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ToolMissing(f"the Cloud Storage tests need `{program}`, which is not on this machine: {remedy}")
    return found


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,  # away from the project, so that no build file of it is read
            env=os.environ | environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise ServiceFailed(f"`{' '.join(command)}` failed: {(error.stderr or error.stdout).strip()}") from error


if __name__ == "__main__":
    print(fake_gcs_server(), gcs_connector(), sep="\n")
