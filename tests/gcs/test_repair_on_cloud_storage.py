"""`repair` on a lake in a bucket: each kind of harm is named, and mended by a real Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gcs.repair_through_spark import ORPHAN
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

REPAIR_SECONDS = 240.0
WINDOWS = ["2026-11-21T05-20Z", "2026-11-21T05-21Z", "2026-11-21T05-22Z"]


def test_a_deleted_window_a_corrupt_object_and_an_orphan_are_each_named_and_mended(
    gcs_lake_settings: LakeSettings, tmp_path: Path, connector_cache: Path
) -> None:
    lake = gcs_lake_settings
    assert lake.endpoint is not None
    command = [sys.executable, "-m", "tests.gcs.repair_through_spark", lake.uri, lake.endpoint]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=REPAIR_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    # Spark's workers read the columns of heartbeats from the bucket, and wrote those of the diffs there.
    assert facts["computed"] == {"gap_seconds": [None] + [30.0] * 5, "temperature_delta": [None] + [2.0] * 5}
    gone, damaged = facts["harmed"]
    assert facts["was_sound"]
    assert facts["dry"] == [2, 0, 1, 0]
    assert facts["young"] == 0
    first, second, third = facts["found"]
    assert first == f"damaged: {WINDOWS[0]}: {lake.uri}/{gone}: it is gone"
    assert second.startswith(f"damaged: {WINDOWS[2]}: {lake.uri}/{damaged}: it cannot be read: ")
    assert third.startswith(f"orphaned: {lake.uri}/{ORPHAN}: left by run dead (")
    assert (facts["mended"], facts["materialized"]) == ([2, 1], [WINDOWS[0], WINDOWS[2]])
    assert facts["rows_are_the_same"]
    assert facts["orphans_left"] == []
    assert facts["is_sound"]
    # So did Spark itself, by the connector that each session is given.
    assert {"silent", "stream-0"} <= set(facts["copied"])
