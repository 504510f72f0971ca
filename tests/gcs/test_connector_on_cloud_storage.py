"""Spark's own readers and writers on `gs://` over Connect, with the JAR that tidemark fetches. The test of repair has a
classic session that does the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gcs.apart import fresh_lake
from tests.official_emulator import free_port
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import TOKEN, have_connector, spark_server
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings

pytestmark = pytest.mark.gcs

SECRET = "a secret of these tests"  # noqa: S105 (nobody else's)
PROGRAM_SECONDS = 240.0


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, SystemClock(), print)
    yield supervisor
    supervisor.stop()


def computed(endpoint: str, remote: str) -> Any:
    """What the program says that it computed in a new lake."""
    lake = fresh_lake(endpoint)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gcs.own_table_in_a_bucket", lake.uri, endpoint, remote],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", TOKEN: SECRET},
        check=False,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_connect_server_reads_and_writes_a_bucket(
    supervisor: Supervisor, connector_cache: Path, endpoint_apart: str, tmp_path: Path
) -> None:
    remote = f"sc://localhost:{free_port()}"
    spark = SparkSettings(remote=remote, config={"spark.driver.memory": "1g"})
    settings = Settings(lake=fresh_lake(endpoint_apart), spark=spark)
    have_connector(supervisor, settings)
    supervisor.start(spark_server(settings, tmp_path, {TOKEN: SECRET}))
    said = computed(endpoint_apart, remote)
    assert said["are_right"], said
    assert said["rows"] > 100
