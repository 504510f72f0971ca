"""Dagster's storage in a real Postgres, by deploy/dagster-postgres.yaml: shared with somebody else's project."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.official_emulator import HOST, free_port
from tests.programs import ended
from tidemark.assets.catalog import HEARTBEATS, WATERMARK
from tidemark.assets.jobs.housekeeping import prune_events, prune_runs
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.scheduler.runs import Runs
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings

SHIPPED = Path(__file__).parents[2] / "deploy" / "dagster-postgres.yaml"
OURS = Settings(lake=LakeSettings(uri="gs://a-bucket/lake"))
THEIRS = dg.AssetKey(["their", "orders"])
DAGSTER = [sys.executable, "-m", "dagster"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """DAGSTER_HOME with the shipped file, and the variables that it asks for."""
    pytest.importorskip("dagster_postgres", reason="pip install 'tidemark-pubsub[postgres]'")
    home = tmp_path_factory.mktemp("home")
    shutil.copy(SHIPPED, home / "dagster.yaml")
    with postgres() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("DAGSTER_HOME", str(home))
        patch.setenv("TIDEMARK_DAGSTER_STORAGE", str(home))
        done = ended([*DAGSTER, "instance", "migrate"])
        assert done.returncode == 0, done.stderr
        yield home


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def test_the_password_is_the_environments_and_in_no_file(home: Path, instance: dg.DagsterInstance) -> None:
    """The server asks for it."""
    assert "Postgres" in type(instance.event_log_storage).__name__
    assert not any(PASSWORD in file.read_text() for file in home.glob("*.yaml"))


def test_housekeeping_deletes_our_old_events_and_nothing_of_others(instance: dg.DagsterInstance) -> None:
    later = SystemClock().now() + timedelta(days=1)

    @dg.asset
    def daily() -> None:
        pass

    for _ in range(5):
        instance.report_runless_asset_event(dg.AssetMaterialization(WATERMARK))
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(asset_key=HEARTBEATS, check_name="late", passed=True)
        )
        instance.report_runless_asset_event(dg.AssetMaterialization(THEIRS))
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(THEIRS, check_name="late", passed=True))
    for tags in ({}, tags_of(OURS)):
        dg.materialize([daily], instance=instance, tags=tags)
    assert prune_events(instance, OURS, later) == {"events": 2 * 4, "evaluations": 4}
    assert len(instance.fetch_materializations(WATERMARK, limit=10).records) == 1
    assert len(instance.fetch_materializations(THEIRS, limit=10).records) == 5
    history = instance.event_log_storage.get_asset_check_execution_history
    assert len(history(dg.AssetCheckKey(THEIRS, "late"), limit=10)) == 5
    assert prune_runs(Runs(instance, OURS), later, but="") == 1
    (left,) = instance.get_runs()
    assert left.tags.get("tidemark/pipeline") is None


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
