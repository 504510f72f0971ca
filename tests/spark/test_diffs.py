"""What a heartbeat's diff is."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.spark.beats import Beat, in_columns

STREAMS = 60


def diffs(beats: Sequence[Beat], start: float = 0, end: float = 300) -> list[SimpleNamespace]:
    """The rows, by stream and event time."""
    return [SimpleNamespace(**row) for row in in_columns(beats, start, end)[0]]


def test_a_gap_over_missing_beats_counts_them() -> None:
    rows = diffs([Beat("a", event, str(event)) for event in (0, 30.2, 119.9, 134)])
    assert [(row.gap_seconds, row.missed_heartbeats) for row in rows] == [
        (None, None),
        (30.2, 0),
        (89.7, 2),
        (14.1, 0),
    ]


def test_copies_of_a_message_are_one_row_the_one_published_first() -> None:
    redelivered = [Beat("a", 0, "1", published=5), Beat("a", 0, "1", published=5)]
    published_again = [Beat("b", 0, "3", "x", published=61), Beat("b", 0, "2", "x", published=1)]
    rows = diffs([*redelivered, *published_again, Beat("b", 30, "4", "y")])
    assert [(row.stream_id, row.message_id, row.gap_seconds) for row in rows] == [
        ("a", "1", None),
        ("b", "2", None),
        ("b", "4", 30.0),
    ]


def test_a_publisher_s_id_is_not_taken_for_a_message_id() -> None:
    assert len(diffs([Beat("a", 0, "7"), Beat("a", 0, "8", publisher_id="7")])) == 2


def test_two_heartbeats_of_one_moment_follow_each_other_by_their_ids() -> None:
    rows = diffs([Beat("a", 60, "2", "q"), Beat("a", 60, "1", "p"), Beat("a", 30, "0", "z")])
    assert [(row.message_id, row.gap_seconds, row.missed_heartbeats) for row in rows] == [
        ("0", None, None),
        ("1", 30.0, 0),
        ("2", 0.0, 0),
    ]


def test_a_value_of_another_type_or_none_at_all_has_no_delta_and_has_changed() -> None:
    """The landing makes null of a value that is not of the configured kind; the payload keeps it."""
    values: list[dict[str, Any]] = [
        {"temperature": 1.0, "status": "ok", "on": True, "place": '{"x":1}'},
        {"temperature": None, "status": None, "on": None, "place": None},
        {"temperature": 3.5, "status": "ok", "on": True, "place": '{"x":1}'},
        {"temperature": 3.0, "status": "ok", "on": False, "place": '{"x":2}'},
        {"temperature": 3.0, "status": "ok", "on": False, "place": '{"x":2}'},
    ]
    rows = diffs([Beat("a", 30 * k, str(k), values=one) for k, one in enumerate(values)])
    assert [row.temperature_delta for row in rows] == [None, None, None, -0.5, 0.0]
    assert [row.status_changed for row in rows] == [None, True, True, False, False]
    assert [row.on_changed for row in rows] == [None, True, True, True, False]
    assert [row.place_changed for row in rows] == [None, True, True, True, False]
    assert [row.previous_status for row in rows] == [None, "ok", None, "ok", "ok"]


def test_a_previous_heartbeat_counts_up_to_exactly_the_lookback() -> None:
    beats = [Beat("a", -600, "1"), Beat("a", 0, "2"), Beat("b", -600.000001, "3"), Beat("b", 0, "4")]
    rows = diffs(beats)
    assert [(row.stream_id, row.gap_seconds) for row in rows] == [("a", 600.0), ("b", None)]


def test_a_heartbeat_is_late_only_if_every_copy_landed_late() -> None:
    beats = [
        Beat("a", 0, "1", "x", late=False),
        Beat("a", 0, "2", "x", published=90, late=True),
        Beat("b", 0, "3", "y", late=True),
        Beat("b", 0, "4", "y", published=90, late=True),
    ]
    assert [(row.stream_id, row.late) for row in diffs(beats)] == [("a", False), ("b", True)]


def test_a_row_belongs_to_the_window_of_its_event_time() -> None:
    beats = [Beat("a", event, str(event)) for event in (0, 299.999999, 300)]
    assert [row.window for row in diffs(beats, 0, 600)] == [
        "2026-11-21T12-00Z",
        "2026-11-21T12-00Z",
        "2026-11-21T12-05Z",
    ]
