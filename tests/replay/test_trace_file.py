"""A trace in a Parquet file: what is read, exactly, and what is refused, in words that help."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.replay.traces import steady, write_trace
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import TraceUnusable
from tidemark.pipeline.replay.sources import COLUMNS, ROWS, ParquetTrace
from tidemark.pipeline.replay.trace import NEVER, Batch

US = pa.timestamp("us", tz="UTC")


def file_of(path: Path, *, leave_out: str | None = None, **columns: pa.Array) -> Path:
    """A trace of two messages, with some of its columns replaced."""
    usual = {
        "message_id": pa.array(["1", "2"]),
        "stream_id": pa.array(["a", "b"]),
        "publish_time": pa.array([at(1), at(2)], US),
        "event_time": pa.array([at(0), None], US),
        "tracked_at": pa.array([at(3), None], US),
        "landed_at": pa.array([None, at(4)], US),
    }
    pq.write_table(pa.table({name: each for name, each in (usual | columns).items() if name != leave_out}), path)
    return path


def whole(trace: ParquetTrace) -> Batch:
    (batch,) = trace.batches(streams=True)
    return batch


def test_a_trace_comes_back_as_it_was_in_batches_of_bounded_size_over_and_over(tmp_path: Path) -> None:
    written = steady(3, per_second=130, minutes=20)
    trace = ParquetTrace(write_trace(written, tmp_path / "trace.parquet", row_group=100_000))
    assert trace.rows == len(written) > 2 * ROWS
    for _ in range(2):
        batches = list(trace.batches())
        assert max(map(len, batches)) <= ROWS
        assert all(batch.streams is None for batch in batches)
        for name in ("publish_us", "event_us", "tracked_us", "landed_us"):
            assert np.array_equal(np.concatenate([getattr(batch, name) for batch in batches]), getattr(written, name))


@pytest.mark.parametrize(("unit", "zone"), [("s", "UTC"), ("ms", "Europe/Zurich"), ("ns", "+05:30")])
def test_other_units_and_zones_are_read_as_the_moments_that_they_are(tmp_path: Path, unit: str, zone: str) -> None:
    columns = {name: pa.array([at(1), at(2)], pa.timestamp(unit, tz=zone)) for name in COLUMNS[2:]}
    trace = ParquetTrace(file_of(tmp_path / "trace.parquet", **columns))
    assert whole(trace).landed_us.tolist() == [to_us(at(1)), to_us(at(2))]
    assert not trace.is_taken_for_utc


def test_a_column_of_nothing_but_nulls_needs_no_type_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    file = file_of(tmp_path / "trace.parquet", landed_at=pa.nulls(2), stream_id=pa.nulls(2), more=pa.array([1, 2]))
    batch = whole(ParquetTrace(file))
    assert batch.landed_us.tolist() == [NEVER, NEVER]
    assert batch.streams.to_pylist() == [None, None]


MOMENTS = pa.array([at(1), at(2)], US)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"leave_out": "tracked_at"}, ["lacks the column tracked_at", "message_id, stream_id, publish_time"]),
        ({"leave_out": "stream_id"}, ["lacks the column stream_id (it has message_id,"]),
        ({"publish_time": pa.array([1, 2])}, ["publish_time", "int64", "no unit", 'pa.timestamp("us", tz="UTC")']),
        ({"event_time": pa.array([1.5, 2])}, ["event_time", "double", "no unit"]),
        ({"landed_at": pa.array(["2026-11-21", None])}, ["landed_at", "string", "timestamp[us, tz=UTC]"]),
        ({"event_time": pa.array([1, 2], pa.date32())}, ["event_time", "date32"]),
        ({"publish_time": pa.array([at(1), None], US)}, ["publish_time", "null in at least 1 row"]),
        ({"publish_time": pa.nulls(2)}, ["publish_time", "null"]),
        ({"event_time": MOMENTS.cast(pa.timestamp("us"))}, ["without one (event_time)", "timestamp[us, tz=UTC]"]),
        ({"landed_at": pa.array([1, 2], pa.timestamp("ns", tz="UTC"))}, ["landed_at", "timestamp[ns", "microseconds"]),
        ({"tracked_at": pa.array([1 << 61, 2], pa.timestamp("ms", tz="UTC"))}, ["tracked_at", "out of range"]),
        ({"tracked_at": pa.array([1 << 60, 2], US)}, ["tracked_at", "a different unit"]),
        ({"stream_id": pa.array([b"a", b"b"])}, ["stream_id", "binary", "text"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_ambiguous_column_is_refused_by_its_name(tmp_path: Path, columns: dict[str, Any], words: list[str]) -> None:
    file = file_of(tmp_path / "trace.parquet", **columns)
    with pytest.raises(TraceUnusable) as refused:
        list(ParquetTrace(file).batches())
    for each in (*words, str(file)):
        assert each in str(refused.value)


def test_a_file_that_is_no_parquet_or_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("publish_time,event_time")
    for path in (tmp_path / "text", tmp_path, tmp_path / "nowhere", tmp_path / "not UTF-8: \udcff"):
        with pytest.raises(TraceUnusable, match=str(path)):
            ParquetTrace(path)
    file = write_trace(steady(1), tmp_path / "trace.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 4 : len(content) * 3 // 4] = bytes(len(content) // 2)
    file.write_bytes(content)
    with pytest.raises(TraceUnusable, match="cannot be read"):
        list(ParquetTrace(file).batches())
