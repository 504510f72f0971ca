"""Compute windows of a lake in a bucket with Spark's own functions, which read and write `gs://` through the connector,
and print the rows as JSON.

`python -m tests.gcs.frames_in_a_bucket <lake.uri> <lake.endpoint> <spark.remote>`: a program of its own, because a
process cannot hold both kinds of session.
"""

import json
import sys
from datetime import timedelta

from tests.lake.builders import append_beats
from tests.spark.beats import FIELDS, at, batch_over
from tests.spark.test_columns import WINDOWS, by_message, dirty, in_columns, landed, naive
from tidemark.pipeline.clock import ManualClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, SparkSettings
from tidemark.pipeline.spark.micro_batch import UNABLE, compute_windows
from tidemark.pipeline.spark.session import session_config, shared_session

SEED = 20_261_122


def main(uri: str, endpoint: str, remote: str) -> None:
    settings = LakeSettings(uri=uri, endpoint=endpoint)
    lake, beats = Lake(settings, FIELDS, ManualClock(at(2000))), dirty(SEED)
    append_beats(lake.heartbeats(), landed(beats))
    session = shared_session(session_config(Settings(lake=settings, spark=SparkSettings(remote=remote))))
    UNABLE.add(session)  # so that nothing is computed in columns, which would need no connector
    compute_windows(batch_over(lake, session, at(900) + timedelta(seconds=1)), WINDOWS)
    session.stop()
    table = lake.diffs().table.current()
    assert table is not None
    rows = sorted((tuple(map(naive, row.values())) for row in table.to_pyarrow_table().to_pylist()), key=by_message)
    expected = in_columns(beats, 0, 900)[0]
    print(json.dumps({"rows": len(rows), "are_right": rows == expected}))


if __name__ == "__main__":
    main(*sys.argv[1:])
