"""Heartbeats as the landing writes them, and what their diffs must be, worked out in plain Python."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.pipeline.compute.columns import NUMBER, DiffPlan, heartbeat_diffs, stream_status
from tidemark.pipeline.compute.micro_batch import MicroBatch
from tidemark.pipeline.contract.heartbeat import FieldKind, compared_columns
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import STATUS, diff_schema
from tidemark.pipeline.lake.tables.heartbeats import columns_read
from tidemark.pipeline.lake.tables.windowed import PARTITION

T0 = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIELDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT, "on": FieldKind.BOOLEAN, "place": FieldKind.JSON}
LOOKBACK = timedelta(minutes=10)
PERIOD = timedelta(seconds=30)
LENGTH = timedelta(minutes=5)
PLAN = DiffPlan(FIELDS, LOOKBACK, PERIOD, LENGTH)


def at(seconds: float) -> datetime:
    """A moment, by its distance from noon."""
    return T0 + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Beat:
    """A row of `heartbeats`."""

    stream: str
    event: float
    message_id: str
    publisher_id: str | None = None
    published: float | None = None
    late: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> tuple[Any, ...]:
        published = self.event + 1 if self.published is None else self.published
        return (
            *(self.stream, at(self.event), self.publisher_id, self.message_id, at(published), self.late),
            *(self.values.get(name) for name in FIELDS),
        )


def table(beats: Iterable[Beat]) -> pl.DataFrame:
    """The beats as a task reads them, in the order given."""
    schema = columns_read(FIELDS)
    return pl.DataFrame(
        pa.Table.from_pylist([dict(zip(schema.names, one.row(), strict=True)) for one in beats], schema)
    )


def columns_of(beats: Sequence[tuple[str, float]], **fields: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Heartbeats of streams at event times, as a landing's columns."""
    moments, names = [at(event) for _, event in beats], [f"{stream}@{event}" for stream, event in beats]
    same = {"ordering_key": None, "payload": b"{}", "landed_at": at(2000), "late": False}
    return {
        "stream_id": [stream for stream, _ in beats],
        "event_time": moments,
        "publisher_id": names,
        "message_id": names,
        "publish_time": moments,
        "attributes": [[("site", "north")] for _ in beats],
        **{name: [value] * len(beats) for name, value in same.items()},
        **fields,
    }


def in_columns(beats: Iterable[Beat], start: float, end: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The diffs and the status that the product makes of them, each with the columns of its table, by stream and event
    time, and by window, stream and kind."""
    rows = table(beats)
    made = heartbeat_diffs(rows, PLAN, at(start), at(end))
    status = stream_status(made, rows, PLAN, at(start), at(end))
    return (
        sorted(_with_windows(made, diff_schema(FIELDS).names, start), key=by_message),
        sorted(_with_windows(status, STATUS.names, start), key=by_kind),
    )


def _with_windows(made: pl.DataFrame, names: Sequence[str], start: float) -> list[dict[str, Any]]:
    return [
        {name: naive(row[name]) for name in names if name != PARTITION}
        | {PARTITION: at(start + row[NUMBER] * LENGTH.total_seconds()).strftime("%Y-%m-%dT%H-%MZ")}
        for row in made.rows(named=True)
    ]


def naive(value: Any) -> Any:
    """A moment as Spark gives it, without a time zone."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def by_message(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["stream_id"], row["event_time"], row["message_id"]


def by_kind(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["window"], row["stream_id"], row["kind"]


def expected(beats: Sequence[Beat], start: float, end: float) -> list[dict[str, Any]]:
    """The diffs by another way: a dictionary of copies, and a loop over each stream."""
    copies: dict[tuple[str, float, str], list[Beat]] = defaultdict(list)
    for beat in beats:
        if at(start) - LOOKBACK <= at(beat.event) <= at(end):
            name = f"p{beat.publisher_id}" if beat.publisher_id is not None else f"m{beat.message_id}"
            copies[beat.stream, beat.event, name].append(beat)
    streams: dict[str, list[tuple[float, str, Beat, bool]]] = defaultdict(list)
    for (stream, event, name), group in copies.items():
        first = min(group, key=lambda beat: (beat.row()[4], beat.message_id, not beat.values))
        streams[stream].append((event, name, first, all(beat.late for beat in group)))
    rows: list[dict[str, Any]] = []
    for stream, ordered in streams.items():
        ordered.sort(key=lambda one: (one[0], one[1]))
        for (event, _, beat, late), before in zip(ordered, [None, *ordered], strict=False):
            if not start <= event < end:
                continue
            gap = None if before is None else at(event) - at(before[0])
            paired = before if gap is not None and gap <= LOOKBACK else None
            missed = None if paired is None or gap is None else max(int(gap / PERIOD + 0.5) - 1, 0)
            row: dict[str, Any] = {
                "stream_id": stream,
                "event_time": at(event).replace(tzinfo=None),
                "previous_event_time": None if paired is None else at(paired[0]).replace(tzinfo=None),
                "gap_seconds": None if paired is None or gap is None else gap.total_seconds(),
                "missed_heartbeats": missed,
            }
            for name, kind in FIELDS.items():
                value, previous, comparison = compared_columns(name, kind)
                now = beat.values.get(name)
                earlier = None if paired is None else paired[2].values.get(name)
                row |= {value: now, previous: earlier}
                if kind is FieldKind.NUMBER:
                    delta = None if now is None or earlier is None else now - earlier
                    row[comparison] = delta if delta is not None and math.isfinite(delta) else None
                else:
                    row[comparison] = None if paired is None else now != earlier
            row |= {"publish_time": beat.row()[4].replace(tzinfo=None), "message_id": beat.message_id, "late": late}
            window = at(event - event % LENGTH.total_seconds())
            row["window"] = window.strftime("%Y-%m-%dT%H-%MZ")
            rows.append(row)
    return sorted(rows, key=by_message)


def expected_status(beats: Sequence[Beat], start: float, end: float) -> list[dict[str, Any]]:
    """The status by another way: for each window and stream, what a person would look for."""
    length, back, beat_seconds = (one.total_seconds() for one in (LENGTH, LOOKBACK, PERIOD))
    events: dict[str, set[tuple[float, str]]] = defaultdict(set)
    for beat in beats:
        name = f"p{beat.publisher_id}" if beat.publisher_id is not None else f"m{beat.message_id}"
        events[beat.stream].add((beat.event, name))
    rows: list[dict[str, Any]] = []
    window = start
    while window < end:
        for stream, heard in events.items():
            within = sorted(event for event, _ in heard if window <= event < window + length)
            before = max((event for event, _ in heard if window - back <= event < window), default=None)
            gaps = []
            for number, event in enumerate(within):
                earlier = within[number - 1] if number else max((e for e, _ in heard if e < window), default=None)
                gap = None if earlier is None else (at(event) - at(earlier)).total_seconds()
                if gap is not None and gap <= back and int(gap / beat_seconds + 0.5) > 1:
                    gaps.append(gap)
            row = {
                "stream_id": stream,
                "kind": "",
                "last_event_time": _moment(before),
                "first_event_time": _moment(within[0] if within else None),
                "heartbeats": len(within) or None,
                "gaps": None,
                "missed_heartbeats": None,
                "longest_gap_seconds": None,
                "window": at(window).strftime("%Y-%m-%dT%H-%MZ"),
            }
            if before is not None and not within:
                rows.append({**row, "kind": "stopped"})
            if before is None and within:
                rows.append({**row, "kind": "started"})
            if gaps:
                missed = sum(int(gap / beat_seconds + 0.5) - 1 for gap in gaps)
                said = {"gaps": len(gaps), "missed_heartbeats": missed, "longest_gap_seconds": max(gaps)}
                rows.append({**row, **said, "kind": "missed"})
        window += length
    return sorted(rows, key=by_kind)


def _moment(event: float | None) -> datetime | None:
    return None if event is None else naive(at(event))


def batch_over(lake: Lake, spark: SparkSession, watermark: datetime | None) -> MicroBatch:
    """A micro-batch over a lake, as a run makes it."""
    return MicroBatch(
        spark,
        heartbeats=lake.heartbeats(),
        tables=(lake.stream_status(), lake.diffs()),
        plan=PLAN,
        watermark=watermark,
        run="run",
        clock=lake._clock,
        refuse_expired=lambda _: None,
    )
