"""A micro-batch whose tasks read from a bucket and write into it, with the lake's own credentials and without a JAR."""

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.clock import ManualClock
from tests.lake.builders import append_beats
from tests.spark.beats import FIELDS, at, batch_over, by_message, in_columns, naive
from tests.spark.test_columns import WINDOWS, dirty, landed
from tidemark.pipeline.compute.micro_batch import compute_windows
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs


def test_windows_are_computed_from_a_bucket_into_it(spark: SparkSession, lake_apart: LakeSettings) -> None:
    lake = Lake(lake_apart, FIELDS, ManualClock(at(2000)))
    beats = dirty(20_261_122)
    for first in range(3):
        append_beats(lake.heartbeats(), landed(beats[first::3]))
    computed = compute_windows(batch_over(lake, spark, at(900) + timedelta(seconds=1)), WINDOWS)
    made, status = in_columns(beats, 0, 900)
    table = lake.diffs().table.current()
    assert table is not None
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(({name: naive(value) for name, value in row.items()} for row in rows), key=by_message) == made
    assert sum(computed.rows.values()) == len(made)
    assert len(lake.stream_status().rows([window.key for window in WINDOWS])) == len(status)
