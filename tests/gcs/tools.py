"""What the Cloud Storage tests need beside Python packages, fetched once into `build/tools`.

`python -m tests.gcs.tools` fetches it all beforehand: the first build takes some minutes.
"""

import os
import shutil
import subprocess
from pathlib import Path

from pipeline.errors import ServiceFailed, ToolMissing

TOOLS = Path(__file__).parents[2] / "build" / "tools"
SERVER_MODULE = "github.com/fsouza/fake-gcs-server"
SERVER_VERSION = "v1.56.1"
CONNECTOR_GROUP = "com.google.cloud.bigdataoss"
CONNECTOR_VERSION = "4.0.4"
"""Spark 4 reads and writes with it. Later 4.0.x have no shaded JAR, and 3.1.x fails on Parquet's column reads."""
FETCH_SECONDS = 1200.0


def fake_gcs_server() -> Path:
    """The server's program, compiled here when it is not there yet. Raises ToolMissing without Go."""
    folder = TOOLS / f"fake-gcs-server-{SERVER_VERSION}"
    program = folder / "fake-gcs-server"
    if not program.exists():
        go = _required("go", "install Go 1.24 or later, and put its `go` on the PATH")
        _run([go, "install", f"{SERVER_MODULE}@{SERVER_VERSION}"], {"GOBIN": str(folder)})
    return program


def gcs_connector() -> Path:
    """The JAR that lets Spark use `gs://`, fetched when it is not there yet. Raises ToolMissing without Maven."""
    jar = TOOLS / f"gcs-connector-{CONNECTOR_VERSION}-shaded.jar"
    if not jar.exists():
        maven = _required("mvn", "install Maven (apt-get install maven), and put its `mvn` on the PATH")
        artifact = f"-Dartifact={CONNECTOR_GROUP}:gcs-connector:{CONNECTOR_VERSION}:jar:shaded"
        _run([maven, "-q", "-B", "dependency:get", artifact, "-Dtransitive=false"], {})
        _run([maven, "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={TOOLS}"], {})
    return jar


def _required(program: str, remedy: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ToolMissing(f"the Cloud Storage tests need `{program}`, which is not on this machine: {remedy}")
    return found


def _run(command: list[str], environment: dict[str, str]) -> None:
    TOOLS.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            command,
            cwd=TOOLS,  # away from the project, so that no build file of it is read
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
