"""A Postgres of Debian's on loopback, with a login, for as long as a block runs."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.official_emulator import HOST, free_port

SECONDS = 120
USER, PASSWORD, DATABASE = "dagster", "only for this test", "postgres"


def programs() -> Path:
    """The folder with Postgres' programs; the test is skipped without them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_the_path = shutil.which("initdb")
    if not found and on_the_path is None:
        pytest.skip("there is no Postgres on this machine: apt-get install postgresql")
    return found[-1].parent if found else Path(on_the_path or "").resolve().parent


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """The variables of deploy/dagster-postgres.yaml for a new, empty database. It does not run as root."""
    bin_, port = programs(), free_port()
    account = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="tidemark-postgres-") as name:
        folder = Path(name)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            for each in (folder, secret):
                shutil.chown(each, account)

        def run(program: str, *arguments: str) -> None:
            command = [str(bin_ / program), "-D", str(folder / "data"), *arguments]
            who = {"user": account} if os.getuid() == 0 else {}
            with (folder / "log").open("ab") as log:
                subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=True, timeout=SECONDS, **who)  # type: ignore[call-overload]

        run("initdb", "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses={HOST} -c fsync=off"
        run("pg_ctl", "-w", "-t", str(SECONDS), "-l", str(folder / "server.log"), "-o", options, "start")
        try:
            yield {
                "DAGSTER_POSTGRES_HOST": HOST,
                "DAGSTER_POSTGRES_PORT": str(port),
                "DAGSTER_POSTGRES_DB": DATABASE,
                "DAGSTER_POSTGRES_USER": USER,
                "DAGSTER_POSTGRES_PASSWORD": PASSWORD,
            }
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")
