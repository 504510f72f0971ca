"""Spark reads and writes `gs://` with the settings that the lake's address means."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.lake.store.address import open_objects
from pipeline.settings_sections import LakeSettings
from tests.gcs.tools import gcs_connector

pytestmark = pytest.mark.gcs

ROWS = 10_000
SPARK_SECONDS = 180.0


def test_columns_that_spark_writes_to_a_bucket_come_back(gcs_lake_settings: LakeSettings) -> None:
    """The columns are read: a count would read footers only, and prove nothing."""
    lake = gcs_lake_settings
    assert lake.endpoint is not None
    command = [sys.executable, "-m", "tests.gcs.columns_through_spark", lake.uri, lake.endpoint]
    done = subprocess.run(
        [*command, str(gcs_connector()), str(ROWS)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=SPARK_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    numbers = range(ROWS)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "number": sum(numbers),
        "text": sum(len(str(n)) for n in numbers),
    }
    parts = [name for name in open_objects(lake).names("columns/") if name.endswith(".parquet")]
    assert len(parts) == 2
