"""What is remarkable about a stream in a window, against a loop in plain Python."""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from tests.spark.beats import LENGTH, LOOKBACK, PERIOD, Beat, at, by_kind, in_columns, naive

WINDOW = int(LENGTH.total_seconds())
BACK = LOOKBACK.total_seconds()
BEAT = PERIOD.total_seconds()


def status(beats: Sequence[Beat], start: float = 0, end: float = 300) -> list[dict[str, Any]]:
    """The rows, by window, stream and kind."""
    return in_columns(beats, start, end)[1]


def moment(event: float | None) -> datetime | None:
    return None if event is None else naive(at(event))


def expected(beats: Sequence[Beat], start: float, end: float) -> list[dict[str, Any]]:
    """The rows by another way: for each window and stream, what a person would look for."""
    events: dict[str, set[tuple[float, str]]] = defaultdict(set)
    for beat in beats:
        name = f"p{beat.publisher_id}" if beat.publisher_id is not None else f"m{beat.message_id}"
        events[beat.stream].add((beat.event, name))
    rows: list[dict[str, Any]] = []
    window = start
    while window < end:
        for stream, heard in events.items():
            within = sorted(event for event, _ in heard if window <= event < window + WINDOW)
            before = max((event for event, _ in heard if window - BACK <= event < window), default=None)
            gaps = []
            for number, event in enumerate(within):
                earlier = within[number - 1] if number else max((e for e, _ in heard if e < window), default=None)
                gap = None if earlier is None else (at(event) - at(earlier)).total_seconds()
                if gap is not None and gap <= BACK and int(gap / BEAT + 0.5) > 1:
                    gaps.append(gap)
            row = {
                "stream_id": stream,
                "kind": "",
                "last_event_time": moment(before),
                "first_event_time": moment(within[0] if within else None),
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
                missed = sum(int(gap / BEAT + 0.5) - 1 for gap in gaps)
                said = {"gaps": len(gaps), "missed_heartbeats": missed, "longest_gap_seconds": max(gaps)}
                rows.append({**row, **said, "kind": "missed"})
        window += WINDOW
    return sorted(rows, key=by_kind)


@pytest.fixture(scope="module")
def traffic() -> list[Beat]:
    """Streams that beat, miss, fall silent for less and for more than the lookback and to the microsecond of it, with
    copies and equal moments."""
    source = random.Random(7_331)
    beats: list[Beat] = []
    for stream in range(120):
        event = float(source.choice([-1200, -600, -300, 0, 300])) + source.choice([0, 0, source.uniform(-50, 50)])
        until = source.choice([100, 700, 1500])
        while event < until:
            event = round(event, 6)
            identity = source.choice([None, f"id{len(beats)}"])
            beats.append(Beat(f"s{stream}", event, str(len(beats)), identity, event + 1))
            if source.random() < 0.2:
                again = beats[-1].message_id if identity is None else str(len(beats))
                beats.append(Beat(f"s{stream}", event, again, identity, event + source.choice([1, 60])))
            event += source.choice([0, 30, 30, 30, 30, 44.999999, 45, 90, 300, 599.999999, 600, 600.000001, 900, 1300])
    source.shuffle(beats)
    return beats


def test_every_row_equals_a_count_by_hand(traffic: list[Beat]) -> None:
    made = status(traffic, 0, 1200)
    assert {row["kind"] for row in made} == {"stopped", "started", "missed"}
    assert made == expected(traffic, 0, 1200)
