"""What counts, and as what, by brute force: `python -m tests.watermark.what_counts` plays more."""

from datetime import timedelta

import pytest

from tests.watermark.builders import START_US
from tests.watermark.what_counts import (
    SECOND,
    AnyPublishTime,
    Message,
    Schedule,
    first_late,
    keeps_its_band,
    late_in,
    remembering,
)
from tidemark.pipeline.watermark.policy import Policy

SCHEDULES = 150


def test_nothing_that_holds_the_watermark_is_late() -> None:
    seed, played = first_late(range(SCHEDULES))
    assert seed is None
    assert played > SCHEDULES // 3


def test_without_the_clamp_a_fast_clock_makes_others_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.pipeline.watermark.histogram.clamped", lambda event_us, _publish_us: event_us)
    seed, _ = first_late(range(SCHEDULES), copies=False, bounded=False)
    assert seed is not None


def test_a_copy_that_was_tracked_first_and_published_later_takes_nothing_from_the_first_one() -> None:
    """It lies beyond T, outside of the band; were the first copy no more than a copy of it, nothing would hold."""

    def message(number: int, *times: int) -> Message:
        return Message(number, *(START_US + time * SECOND for time in times))

    anchor, first, later = message(0, 84, 83, 85, 86), message(1, 93, 82, 107, 110), message(1, 105, 82, 106, 130)
    schedule = Schedule(
        Policy(idle="hold"),
        (anchor, first, later, message(2, 100, 99, 120, 121)),
        tuple(START_US + at * SECOND for at in (108, 112)),
    )
    assert keeps_its_band(schedule)
    assert late_in(schedule, remembering) == []
    assert late_in(schedule, lambda: AnyPublishTime(timedelta(minutes=10))) == [first]
