"""The Cloud Storage server in a process of its own.

Some calls keep Python's lock while they wait for an answer (Arrow reading a footer, delta-rs asking whether a table is
there). The XML proxy, were it in the same process, could never give it.
"""

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gcs.server import LOCAL_PROJECT, CloudStorageServer
from tidemark.pipeline.settings_sections import LakeSettings

STOP_SECONDS = 15.0


@contextmanager
def apart(module: str, *arguments: str) -> Iterator[str]:
    """The line that a module says in a process of its own, which ends when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()  # which ends it
        process.wait(STOP_SECONDS)
        process.stdout.close()


@contextmanager
def server_apart() -> Iterator[str]:
    """The endpoint of a server that runs until the block is left."""
    with apart("tests.gcs.apart") as endpoint:
        yield endpoint


def fresh_lake(endpoint: str) -> LakeSettings:
    """A lake of its own: a prefix in a new bucket."""
    bucket = f"tidemark-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(  # noqa: S310 (the scheme is ours)
        f"{endpoint}/storage/v1/b?project={LOCAL_PROJECT}",
        data=f'{{"name": "{bucket}"}}'.encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=STOP_SECONDS).close()  # noqa: S310 (the scheme is ours)
    return LakeSettings(uri=f"gs://{bucket}/lake", endpoint=endpoint)


if __name__ == "__main__":
    with CloudStorageServer() as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()
