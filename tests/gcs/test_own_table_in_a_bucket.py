"""A custom table in a bucket: Spark reads and writes it at `gs://` over Connect, with the JAR that tidemark fetches.

`python -m tests.gcs.test_own_table_in_a_bucket <lake.uri> <lake.endpoint> <spark.remote>` is a program of its own,
because a process cannot hold both kinds of session.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame

from tests.clock import ManualClock
from tests.gcs.apart import fresh_lake
from tests.lake.builders import append_beats
from tests.official_emulator import free_port
from tests.spark.beats import FIELDS, at, batch_over
from tests.spark.test_columns import WINDOWS, dirty, landed
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import TOKEN, have_connector, spark_server
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute import own_tables
from tidemark.pipeline.compute.micro_batch import compute_windows
from tidemark.pipeline.compute.own_tables import OwnBatch
from tidemark.pipeline.compute.table_definition import windowed
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.address import scan_options, storage_options
from tidemark.pipeline.quality.due_windows import ComputedWindows
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, SparkSettings
from tidemark.pipeline.spark.session import session_config, shared_session
from tidemark.pipeline.windows import Window, Windowing

SECRET = "a secret of these tests"  # noqa: S105 (nobody else's)
PROGRAM_SECONDS = 240.0


@windowed()
def counts(heartbeats: DataFrame, windows: Any) -> DataFrame:
    return heartbeats.groupBy("window", "stream_id").count()


def main(uri: str, endpoint: str, remote: str) -> None:
    """Compute windows of a lake, then those of a custom table in two runs. Polars reads the same rows."""
    own_tables.COPIES_SENT = 0  # so that the list of copies is a file in the bucket
    settings, clock = LakeSettings(uri=uri, endpoint=endpoint), ManualClock(at(2000))
    lake = Lake(settings, FIELDS, clock)
    append_beats(lake.heartbeats(), landed(dirty(20_261_122)))
    session = shared_session(session_config(Settings(lake=settings, spark=SparkSettings(remote=remote))))
    compute_windows(batch_over(lake, session, at(900) + timedelta(seconds=1)), WINDOWS)
    windowing = Windowing(WINDOWS[0].end - WINDOWS[0].start, WINDOWS[0].start)
    digests = ComputedWindows.of(lake.diffs().runs(), windowing).digests(WINDOWS, windowing)
    own = lake.own_table("counts")

    def compute(windows: Sequence[Window]) -> None:
        batch = session, lake.heartbeats(), at(2000), "own", clock, lambda _: None
        compute_windows(OwnBatch(*batch, (own,), counts, digests), windows)

    compute(WINDOWS)
    compute(WINDOWS[:1])
    session.stop()
    assert lake.own_tables() == ["counts"]
    assert lake.own_table("counts").made().made_of(digests) == set(digests)
    read = pl.read_delta(own.table.uri, storage_options=scan_options(storage_options(settings)))
    found = {(row["window"], row["stream_id"]): row["count"] for row in read.to_dicts()}
    expected = Counter((row["window"], row["stream_id"]) for row in lake.diffs().read(list(digests)).to_pylist())
    assert found == expected
    assert expected.total() > 100


@pytest.mark.gcs
@pytest.mark.slow
def test_a_custom_table_is_computed_over_connect(connector_cache: Path, endpoint_apart: str, tmp_path: Path) -> None:
    assert connector_cache.exists()
    lake, remote = fresh_lake(endpoint_apart), f"sc://localhost:{free_port()}"
    settings = Settings(lake=lake, spark=SparkSettings(remote=remote, config={"spark.driver.memory": "1g"}))
    supervisor = Supervisor(tmp_path, SystemClock(), print)
    try:
        have_connector(supervisor, settings)
        supervisor.start(spark_server(settings, tmp_path, {TOKEN: SECRET}))
        done = subprocess.run(
            [sys.executable, "-m", __name__, lake.uri, endpoint_apart, remote],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", TOKEN: SECRET},
            check=False,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
        )
    finally:
        supervisor.stop()
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
    # As the command ends: the interpreter's own shutdown aborts if a library's thread still calls into Python.
    sys.stdout.flush()
    os._exit(0)
