"""Programs and JARs that the Cloud Storage tests need beside Python packages.

`python -m tests.gcs.tools` fills the cache beforehand; from nothing that takes some minutes.
"""

import shutil
from pathlib import Path

from tests.cache import cache, made_once, run_in
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.spark.connector import connector_file, fetch

SERVER_MODULE = "github.com/fsouza/fake-gcs-server"
SERVER_VERSION = "v1.56.1"


def fake_gcs_server() -> Path:
    """The server's program; it is compiled if the cache lacks it. Raises ToolMissing without Go, ServiceFailed."""
    program = cache() / f"fake-gcs-server-{SERVER_VERSION}"
    with made_once(program) as folder:
        if folder is not None:
            go = shutil.which("go")
            if go is None:
                raise ToolMissing("the Cloud Storage tests need `go`: install Go 1.24 or later, and put it on the PATH")
            # Compiled without inlining and C code, it takes a fifth less time.
            command = [go, "install", "-gcflags=all=-l", f"{SERVER_MODULE}@{SERVER_VERSION}"]
            run_in(folder, command, {"GOBIN": str(folder), "CGO_ENABLED": "0"})
            (folder / "fake-gcs-server").rename(program)
    return program


def gcs_connector() -> Path:
    """The JAR with which Spark uses `gs://`, fetched into the cache of the tests. Raises ToolMissing."""
    jar = cache() / connector_file().name
    fetch(SystemClock(), jar)
    return jar


if __name__ == "__main__":
    print(fake_gcs_server(), gcs_connector(), sep="\n")
