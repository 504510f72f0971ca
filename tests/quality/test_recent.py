"""What landed recently: compared fields that are null in all of it, and what lags more than `max_lag`, by stream."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.watermark.builders import at
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.landings import Counts
from tidemark.pipeline.quality.recent import NullField, read_null_fields, read_passed_over

KINDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT, "open": FieldKind.BOOLEAN, "tags": FieldKind.JSON}
WHOLE = {"temperature": 1.5, "status": "ok", "open": False, "tags": "[]"}


def land(lake: Lake, landed_at: float, *rows: Mapping[str, Any]) -> None:
    beats = [Beat("a", landed_at - number, values=values) for number, values in enumerate(rows)]
    moments = {"landed_at": [at(landed_at)] * len(rows)}
    append_beats(lake.heartbeats(), {**columns_of(beats, list(KINDS)), **moments})


def read(lake: Lake, since: float) -> tuple[int, list[NullField]]:
    return read_null_fields(lake.heartbeats(), KINDS, at(since))


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in WHOLE.items() if name not in names}


def test_a_field_that_is_null_in_all_recent_rows_is_named_with_their_number_and_time(tmp_path: Path) -> None:
    lake = lake_in(tmp_path, KINDS)
    assert read(lake, 0) == (0, [])
    land(lake, 100, WHOLE, WHOLE)
    land(lake, 200, without("tags"), without("open", "tags"))
    land(lake, 300, without("status", "open", "tags"), without("temperature", "open", "tags"))
    rows, fields = read(lake, 250)
    assert (rows, fields) == (2, [NullField("open", 2, at(300)), NullField("tags", 4, at(200))])
    assert fields[1].sentence() == "tags is null in every row that landed since 2026-11-21T05:23:20Z (rows: 4)"
    assert read(lake, 150) == (4, [NullField("tags", 4, at(200))]), "one row has open"
    assert read(lake, 50) == (6, [])


def test_what_the_statistics_leave_out_is_not_called_null(tmp_path: Path) -> None:
    kinds = {f"field_{number}": FieldKind.NUMBER for number in range(60)}
    lake = lake_in(tmp_path, kinds)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1, values={"field_0": 1.0})], list(kinds)))
    named = [field.name for field in read_null_fields(lake.heartbeats(), kinds, at(0))[1]]
    assert "field_1" in named
    assert "field_0" not in named
    assert "field_59" not in named


def test_streams_are_named_from_what_has_landed(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert read_passed_over(lake.heartbeats(), timedelta(minutes=1), at(0), at(1000)) == Counts()
    beats = [("slow", 100, 30), ("slow", 200, 30), ("late once", 130, 69.9), ("in time", 130, 70), ("before", -1, -900)]
    append_beats(
        lake.heartbeats(), columns_of([Beat(stream, event, publish_time=publish) for stream, publish, event in beats])
    )
    found = read_passed_over(lake.heartbeats(), timedelta(minutes=1), at(0), at(1000))
    assert (found.rows, found.by_stream) == (4, {"slow": 2, "late once": 1})
    assert (found.total, found.share) == (3, 0.75)
