"""Runs the Spark Connect server of `tidemark up` alone, for use with another supervisor: `python -m
tidemark.local.services.spark_connect FOLDER`. FOLDER is for the server's files.

The process becomes the server's JVM, which ends on SIGTERM.
"""

import os
import sys
from pathlib import Path

from tidemark.local.services.stack import TOKEN, spark_server
from tidemark.pipeline.errors import InvalidSettings, TidemarkError
from tidemark.pipeline.settings import load_settings


def become_the_server(folder: Path) -> None:
    """Replace this process with the server. Raises InvalidSettings if the environment has no token. No token is
    generated, because clients need the same one."""
    if not (token := os.environ.get(TOKEN)):
        raise InvalidSettings(f"${TOKEN} is not set: set it to a secret, here and for the code server")
    folder.mkdir(parents=True, exist_ok=True)
    server = spark_server(load_settings(), folder, {TOKEN: token})
    os.chdir(server.folder)
    os.execve(server.command[0], list(server.command), {**os.environ, **server.environment})  # noqa: S606 (built here)


if __name__ == "__main__":
    os.umask(0o077)
    try:
        become_the_server(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
    except TidemarkError as error:
        sys.exit(f"tidemark: {error}")
