"""What lags more than `max_lag`, by stream, from what has landed."""

from datetime import timedelta
from pathlib import Path

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import at
from tidemark.pipeline.quality.landings import Counts
from tidemark.pipeline.quality.recent import read_passed_over


def test_streams_are_named_from_what_has_landed(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert read_passed_over(lake.heartbeats(), timedelta(minutes=1), at(0), at(1000)) == Counts()
    beats = [("slow", 100, 30), ("slow", 200, 30), ("late once", 130, 69.9), ("in time", 130, 70), ("before", -1, -900)]
    append_beats(
        lake.heartbeats(),
        columns_of([Beat(stream, event, publish_time=publish) for stream, publish, event in beats]),
    )
    found = read_passed_over(lake.heartbeats(), timedelta(minutes=1), at(0), at(1000))
    assert (found.rows, found.by_stream) == (4, {"slow": 2, "late once": 1})
    assert (found.total, found.share) == (3, 0.75)
