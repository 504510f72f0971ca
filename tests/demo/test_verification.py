"""The comparison with the truth finds every kind of difference: each is planted in a lake that was right."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tidemark.local.demo.truth import SCHEMA
from tidemark.local.demo.verification import TruthComparison, compare
from tidemark.pipeline.contract.heartbeat import FieldKind, RejectionReason
from tidemark.pipeline.lake.tables.diffs import diff_schema
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_schema
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.settings_sections import WindowSettings

FIELDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT}
START = datetime(2026, 11, 21, 5, 20, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WINDOWS = WindowSettings(
    length=timedelta(minutes=1), lookback=timedelta(minutes=10), heartbeat_period=timedelta(seconds=30)
)
STREAMS = ("stream-0", "stream-1")
BEATS = 6

Row = dict[str, Any]


class World:
    """A truth and a lake that hold the same, as lists of rows that a test changes before it compares."""

    def __init__(self) -> None:
        self.truth: list[Row] = []
        self.heartbeats: list[Row] = []
        self.diffs: list[Row] = []
        self.quarantine: list[Row] = []
        for stream in STREAMS:
            for number in range(BEATS):
                self._beat(stream, number)
        copy = {**self.truth[0], "kind": "duplicate", "message_id": "copy", "published_at": START + 60 * SECOND}
        self.truth.append(copy)
        self.heartbeats.append({**self.heartbeats[0], "message_id": "copy"})
        self._reject("rejected-0", RejectionReason.NO_EVENT_TIME, {"stream_id": "stream-0"})
        self._reject("rejected-1", RejectionReason.NO_STREAM_ID, {"event_time": "5"})

    def _beat(self, stream: str, number: int) -> None:
        moment = START + number * 30 * SECOND
        identity = f"{stream}-{moment}"
        same = {"stream_id": stream, "event_time": moment, "message_id": f"{stream}-{number}"}
        values = {"temperature": None if number == 3 else 20.0 + number, "status": "warn" if number == 2 else "ok"}
        sent = {"kind": "heartbeat", "heartbeat_id": identity, "published_at": moment + SECOND}
        self.truth.append(same | values | sent)
        published = same | {"publish_time": moment + SECOND, "late": False}
        landed = {"publisher_id": identity, "landed_at": moment + SECOND, "event_hour": "2026-11-21T05Z"}
        self.heartbeats.append(published | landed)
        previous = {
            "previous_event_time": moment - 30 * SECOND,
            "gap_seconds": 30.0,
            "missed_heartbeats": 0,
            "previous_temperature": None if number == 4 else 20.0 + number - 1,
            "temperature_delta": None if number in (3, 4) else 1.0,
            "previous_status": "warn" if number == 3 else "ok",
            "status_changed": number in (2, 3),
        }
        computed = published | values | {"window": f"2026-11-21T05-{20 + number // 2}Z"}
        self.diffs.append(computed | (previous if number else {}))

    def _reject(self, message: str, reason: RejectionReason, attributes: dict[str, str]) -> None:
        self.truth.append(
            {
                "kind": reason.value,
                "message_id": message,
                "published_at": START,
                "payload": b"what it was",
                "attributes": json.dumps(attributes),
            }
        )
        self.quarantine.append(
            {
                "reason": reason.value,
                "detail": "why",
                "message_id": message,
                "publish_time": START,
                "attributes": list(attributes.items()),
                "payload": b"what it was",
                "landed_at": START,
                "rejected_on": "2026-11-21",
            }
        )

    def diff(self, stream: str, number: int) -> Row:
        """The row of one heartbeat."""
        (row,) = [row for row in self.diffs if row["message_id"] == f"{stream}-{number}"]
        return row

    def compared(self, folder: Path) -> TruthComparison:
        """Write it all down, and compare."""
        pq.write_table(pa.Table.from_pylist(self.truth, SCHEMA), folder / "truth.parquet")
        lake = folder / "lake"
        tables = (
            ("heartbeats", self.heartbeats, heartbeat_schema(FIELDS), "event_hour"),
            ("heartbeat_diffs", self.diffs, diff_schema(FIELDS), "window"),
            ("quarantine", self.quarantine, QUARANTINE, "rejected_on"),
        )
        for name, rows, schema, partition in tables:
            if rows:
                write_deltalake(lake / name, pa.Table.from_pylist(rows, schema), partition_by=[partition])
        return compare(folder / "truth.parquet", lake, WINDOWS)


@pytest.fixture
def world() -> World:
    return World()


def planted(stream: str, number: int, **values: Any) -> Callable[[World], None]:
    """The row of a heartbeat has other values."""
    return lambda world: world.diff(stream, number).update(values)


def added(stream: str, number: int, **values: Any) -> Callable[[World], None]:
    """There is one more row, like that of a heartbeat."""
    return lambda world: world.diffs.append({**world.diff(stream, number), **values})


def without_a_row(world: World) -> None:
    world.diffs.remove(world.diff("stream-0", 2))


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (without_a_row, {"missing": 1}),
        (added("stream-0", 0, event_time=START + 7 * SECOND, message_id="invented"), {"not in the truth": 1}),
        (added("stream-1", 3), {"more than once": 2}),
        (planted("stream-1", 5, window="2026-11-21T05-21Z"), {"in another window": 1}),
        (planted("stream-1", 5, message_id="stream-1-4"), {"another message": 1}),
        (planted("stream-1", 5, publish_time=START), {"published before it was sent": 1}),
        (planted("stream-0", 2, temperature=None), {"other values": 1}),
        (planted("stream-0", 2, gap_seconds=30.000001, status_changed=False), {"other values": 1}),
    ],
)
def test_every_kind_of_difference_is_found_and_named(
    world: World, tmp_path: Path, plant: Callable[[World], None], found: dict[str, int]
) -> None:
    plant(world)
    comparison = world.compared(tmp_path)
    assert comparison.by_what == found
    assert comparison.differences == sum(found.values()) == len(comparison.examples)


def test_a_message_that_landed_and_is_in_no_window_is_missed(world: World, tmp_path: Path) -> None:
    without_a_row(world)
    assert world.compared(tmp_path).missed == 1


def test_a_heartbeat_is_late_only_if_none_of_its_copies_landed_in_time(world: World, tmp_path: Path) -> None:
    world.heartbeats[-1]["late"] = True
    world.heartbeats[1]["late"] = True
    assert world.compared(tmp_path).late == 1


def rejected(**values: Any) -> Callable[[list[Row]], list[Row]]:
    """The first row of quarantine has other values."""
    return lambda rows: [{**rows[0], **values}, *rows[1:]]


@pytest.mark.parametrize(
    ("plant", "differences"),
    [
        (lambda rows: rows[:1], 1),
        (lambda _: [], 2),
        (rejected(reason=RejectionReason.IN_THE_FUTURE.value), 1),
        (rejected(payload=b"repaired"), 1),
        (rejected(payload=None), 1),
        (rejected(attributes=[("stream_id", "stream-9")]), 1),
        (rejected(attributes=[("stream_id", "stream-0"), ("added", "later")]), 1),
        (rejected(attributes=[]), 1),
        (lambda rows: [*rows, {**rows[0], "message_id": "stream-0-0"}], 1),
    ],
)
def test_every_difference_in_quarantine_is_found(
    world: World, tmp_path: Path, plant: Callable[[list[Row]], list[Row]], differences: int
) -> None:
    world.quarantine = plant(world.quarantine)
    comparison = world.compared(tmp_path)
    assert comparison.quarantine_differences == differences
    assert comparison.differences == 0
    assert comparison.quarantined == Counter(row["reason"] for row in world.quarantine)
