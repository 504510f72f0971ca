"""Compute windows of a lake in a bucket, and those of a table of one's own over them, which Spark reads and writes at
`gs://` through the connector. Print as JSON what came of it.

`python -m tests.gcs.own_table_in_a_bucket <lake.uri> <lake.endpoint> <spark.remote>`: a program of its own, because a
process cannot hold both kinds of session.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession

from tests.clock import ManualClock
from tests.lake.builders import append_beats
from tests.spark.beats import FIELDS, at, batch_over, by_message, in_columns, naive
from tests.spark.test_columns import WINDOWS, dirty, landed
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

SEED = 20_261_122


def main(uri: str, endpoint: str, remote: str) -> None:
    settings = LakeSettings(uri=uri, endpoint=endpoint)
    lake, beats = Lake(settings, FIELDS, ManualClock(at(2000))), dirty(SEED)
    append_beats(lake.heartbeats(), landed(beats))
    session = shared_session(session_config(Settings(lake=settings, spark=SparkSettings(remote=remote))))
    compute_windows(batch_over(lake, session, at(900) + timedelta(seconds=1)), WINDOWS)
    own = counted(lake, session, settings)
    session.stop()
    table = lake.diffs().table.current()
    assert table is not None
    found = table.to_pyarrow_table().to_pylist()
    rows = sorted(({name: naive(value) for name, value in row.items()} for row in found), key=by_message)
    expected = in_columns(beats, 0, 900)[0]
    counts = Counter((row["window"], row["stream_id"]) for row in found)
    print(json.dumps({"rows": len(rows), "are_right": rows == expected and own == counts}))


@windowed()
def counts(heartbeats: DataFrame, windows: Any) -> DataFrame:
    return heartbeats.groupBy("window", "stream_id").count()


def counted(lake: Lake, session: SparkSession, settings: LakeSettings) -> dict[tuple[str, str], int]:
    """Heartbeats by window and stream, as Polars reads them from a table of one's own that two runs have written."""
    windowing = Windowing(WINDOWS[0].end - WINDOWS[0].start, WINDOWS[0].start)
    inputs = ComputedWindows.of(lake.diffs().runs(), windowing).inputs(windowing, counts.lookback)
    own = lake.own_table("counts")

    def compute(windows: Sequence[Window]) -> None:
        clock = ManualClock(at(2000))
        batch = session, lake.heartbeats(), at(2000), "own", clock, lambda _: None
        compute_windows(OwnBatch(*batch, counts, own, inputs), windows)

    compute(WINDOWS)
    compute(WINDOWS[:1])
    keys = {window.key: inputs.digest(window) for window in WINDOWS}
    assert lake.own_table("counts").made().made_of(keys) == set(keys)
    read = pl.read_delta(own.table.uri, storage_options=scan_options(storage_options(settings)))
    return {(row["window"], row["stream_id"]): row["count"] for row in read.to_dicts()}


if __name__ == "__main__":
    main(*sys.argv[1:])
    # As the command ends: the interpreter's own shutdown aborts if a library's thread still calls into Python.
    sys.stdout.flush()
    os._exit(0)
