"""A range of closed windows, from landed heartbeats to rows that a reader of the lake sees."""

import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.clock import ManualClock
from tests.lake.builders import append_beats
from tests.spark.beats import T0, at, batch_over, columns_of
from tests.spark.machine import python_without
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.micro_batch import ReplacedWindows, compute_windows
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import ExecutorsUnable, WindowExpired, WindowNotClosed
from tidemark.pipeline.lake.layout import HEARTBEATS, Lake
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.windowed import DiffRun, WindowedTable
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.spark.executors import ABLE, CONTRACT, PYTHON
from tidemark.pipeline.spark.executors import WINDOWS as WINDOWS_NEED
from tidemark.pipeline.upkeep.table_chores import drop_partitions
from tidemark.pipeline.windows import Window, Windowing

KINDS = {"temperature": FieldKind.NUMBER}
PLAN = DiffPlan(KINDS, timedelta(minutes=10), timedelta(seconds=30), timedelta(minutes=5))
WINDOWING = Windowing(PLAN.window_length, T0 - timedelta(days=1))
WINDOWS = list(WINDOWING.between(at(0), at(900)))


class House:
    """A lake on disk, and the micro-batch over it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.settings = LakeSettings(uri=f"file:{folder}")
        self.lake = Lake(self.settings, KINDS, ManualClock(at(2000)))
        self.spark = spark

    def land(self, *beats: tuple[str, float]) -> None:
        """Land heartbeats of streams at event times, as one batch."""
        columns = columns_of(beats, temperature=[float(event) for _, event in beats])
        append_beats(self.lake.heartbeats(), columns)

    def compute(self, windows: list[Window], **changed: Any) -> ReplacedWindows:
        """Compute windows with a watermark above all; `changed` are parts of the batch."""
        batch = batch_over(self.lake, self.spark, at(5000))
        return compute_windows(replace(batch, **{"plan": PLAN, **changed}), windows)

    def rows(self) -> bytes:
        """Every row of the table, in one order, as Arrow writes it."""
        table = DeltaTable(self.folder / "heartbeat_diffs").to_pyarrow_table()
        ordered = table.sort_by([(name, "ascending") for name in ("window", "stream_id", "event_time")])
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, ordered.schema) as writer:
            writer.write_table(ordered.combine_chunks())
        return sink.getvalue()

    def streams(self) -> list[tuple[str, str, float | None]]:
        """Window, stream and gap of each row."""
        table = DeltaTable(self.folder / "heartbeat_diffs").to_pyarrow_table()
        rows = table.select(["window", "stream_id", "gap_seconds"]).to_pylist()
        return sorted(((row["window"], row["stream_id"], row["gap_seconds"]) for row in rows), key=str)


@pytest.fixture
def house(tmp_path: Path, spark: SparkSession) -> House:
    return House(tmp_path / "lake", spark)


def test_a_range_is_computed_window_by_window_and_an_empty_one_counts(house: House) -> None:
    house.land(("a", -30), ("a", 0), ("b", 10), ("a", 610))
    computed = house.compute(WINDOWS)
    assert dict(computed.rows) == {"2026-11-21T12-00Z": 2, "2026-11-21T12-05Z": 0, "2026-11-21T12-10Z": 1}
    assert house.lake.diffs().computed() == set(computed.rows)
    assert house.streams() == [
        ("2026-11-21T12-00Z", "a", 30.0),
        ("2026-11-21T12-00Z", "b", None),
        ("2026-11-21T12-10Z", "a", None),  # its previous heartbeat is more than the lookback before
    ]
    status = house.lake.stream_status().rows(["2026-11-21T12-05Z"]).to_pylist()
    assert [(row["kind"], row["stream_id"]) for row in status] == [("stopped", "a"), ("stopped", "b")]


@pytest.mark.parametrize("watermark", [None, at(899.999999)])
def test_an_open_window_is_refused_and_nothing_is_written(house: House, watermark: datetime | None) -> None:
    house.land(("a", 0))
    before = sorted(house.folder.rglob("*"))
    with pytest.raises(WindowNotClosed, match=r"are not closed yet.*Nothing was written"):
        house.compute(WINDOWS, watermark=watermark)
    assert [path for path in sorted(house.folder.rglob("*")) if path.is_file()] == [
        path for path in before if path.is_file()
    ]


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before the listing", "before the boundary is read"])
def test_a_run_writes_nothing_where_retention_took_its_checked_input(house: House, *, meanwhile: bool) -> None:
    house.land(("a", 0), ("a", 30), ("b", 310))
    house.compute(WINDOWS)
    rows, manifests = house.rows(), sorted((house.folder / "diff_runs").iterdir())
    kept = house.lake.kept_windows(WINDOWING)
    kept.refuse_expired(WINDOWS)

    def retention() -> None:
        kept.raise_to(WINDOWING.containing(WINDOWS[-1].end))
        drop_partitions(house.lake.table(HEARTBEATS), "9")

    def refuse_expired(windows: Sequence[Window]) -> None:
        if meanwhile:
            retention()
        kept.refuse_expired(windows)

    if not meanwhile:
        retention()
    with pytest.raises(WindowExpired, match="Nothing was written"):
        house.compute(WINDOWS, refuse_expired=refuse_expired)
    assert house.rows() == rows
    assert sorted((house.folder / "diff_runs").iterdir()) == manifests


def test_computed_again_after_redeliveries_and_compaction_the_rows_are_the_same_byte_for_byte(house: House) -> None:
    house.land(("a", -30), ("a", 0), ("b", 10))
    house.land(("a", 30), ("b", 310))
    house.compute(WINDOWS)
    before = house.rows()
    house.land(("a", 0), ("b", 10))  # delivered again
    DeltaTable(house.folder / "heartbeats").optimize.compact()
    house.compute(WINDOWS[1:])
    house.compute(WINDOWS[:1])
    assert house.rows() == before


class OvertakenOnce(WindowedTable):
    """A table in which another run, of what had landed before, commits between this one's fence and its commit."""

    def __init__(self, inner: WindowedTable, overtake: Any) -> None:
        super().__init__(inner.table, inner._manifests._objects, inner.schema, inner._clock)
        self._overtake = overtake

    def leave_manifest(self, run: DiffRun) -> None:
        super().leave_manifest(run)
        overtake, self._overtake = self._overtake, lambda: None
        overtake()


@pytest.mark.parametrize("by_another_tool", [False, True])
def test_a_window_made_of_older_input_meanwhile_is_computed_once_more(house: House, by_another_tool: bool) -> None:
    house.land(("a", 0))
    house.compute(WINDOWS[:1])
    older = house.lake.heartbeats().files_between(at(-600), at(300))

    class AsItWas(Heartbeats):
        def files_between(self, start: datetime, end: datetime) -> Any:  # noqa: ARG002 (it answers as it did)
            return older

    def overtake() -> None:
        if by_another_tool:
            DeltaTable(house.folder / "heartbeat_diffs").optimize.z_order(["stream_id"])
        else:
            house.compute(WINDOWS[:1], heartbeats=AsItWas(house.settings, HEARTBEATS, KINDS))

    house.land(("b", 10))
    tables = house.lake.stream_status(), OvertakenOnce(house.lake.diffs(), overtake)
    computed = house.compute(WINDOWS[:1], tables=tables)
    assert dict(computed.rows) == {"2026-11-21T12-00Z": 2}
    assert not computed.superseded[-1]
    assert house.streams() == [("2026-11-21T12-00Z", "a", None), ("2026-11-21T12-00Z", "b", None)]


def files_of(house: House) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in house.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lacks", ["tidemark", "polars"])
def test_lacking_executors_are_refused_before_a_write_and_by_tasks(house: House, lacks: str, tmp_path: Path) -> None:
    house.land(("a", -30), ("a", 0), ("b", 310))
    before, why = files_of(house), rf"cannot run tidemark \(.* on .*{lacks}.*\): .*\$PYSPARK_PYTHON"
    python, able = str(python_without(tmp_path, lacks)), f"{ABLE}.{WINDOWS_NEED[0]}"
    house.spark.conf.set(PYTHON, python)
    try:
        with pytest.raises(ExecutorsUnable, match=why):
            house.compute(WINDOWS)
        assert files_of(house) == before
        house.spark.conf.set(able, f"{CONTRACT} {python}")  # as those were that had joined before
        with pytest.raises(ExecutorsUnable, match=why):
            house.compute(WINDOWS)
    finally:
        house.spark.conf.unset(PYTHON)
    assert house.lake.diffs().computed() == house.lake.stream_status().computed() == set()
    assert house.spark.conf.get(able, "") == "", "the next run would not look before it writes"
