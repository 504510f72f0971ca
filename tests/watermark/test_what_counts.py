"""What counts, and as what, by brute force: `python -m tests.watermark.what_counts` plays more."""

from datetime import timedelta

import pytest

from tests.watermark.builders import START_US, at, published, reading
from tests.watermark.what_counts import (
    LOST,
    SECOND,
    AnyPublishTime,
    Message,
    Schedule,
    first_late,
    folded,
    keeps_its_band,
    late_in,
    remembering,
)
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, Snapshot

SCHEDULES = 180


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


# ------------------------------------------------------------------------------------------------ lost entries


def test_an_entry_lost_from_the_log_makes_nothing_late_unless_nobody_notices() -> None:
    seed, played = first_late(range(SCHEDULES), LOST)
    assert seed is None
    assert played > SCHEDULES // 3
    seed, _ = first_late(range(SCHEDULES), Snapshot(Histogram.empty()))
    assert seed is not None


def test_messages_of_a_lost_entry_above_tracking_s_reading_do_not_count_as_known() -> None:
    # It held what was published at 100.5 and happened at 95; tracking still held 90.5, and so did base.
    entries = [Beginning(at(0)), Snapshot(published([(50, 49)])), LOST]
    first = folded(entries).decide(reading(101, 90.5), reading(101, 90.5), Policy(), at(101))
    later = folded([*entries, first, Snapshot(published([(90.5, 89), (100.2, 99), (115, 114)]))])
    decision = later.decide(reading(120, 100.5), reading(120), Policy(), at(120)).decision
    assert (decision.reason, decision.watermark) == (Reason.HELD_INCOMPLETE, None)
    passed = later.decide(reading(130), reading(130), Policy(), at(130)).decision
    assert (passed.reason, passed.complete_from) == (Reason.ADVANCED, at(101))


def test_a_decision_from_before_a_loss_was_found_does_not_settle_it() -> None:
    entries = [Beginning(at(0)), Snapshot(published([(50, 49)]))]
    before = folded([*entries, Snapshot(published([(60, 40)]))])
    entries += [LOST, before.decide(reading(61, 60), reading(61), Policy(), at(61))]
    assert folded(entries).is_missing_entries
    decision = folded(entries).decide(reading(62, 60), reading(62), Policy(), at(62))
    assert (decision.decision.reason, decision.decision.complete_from) == (Reason.HELD_INCOMPLETE, at(62))
    assert not folded([*entries, decision]).is_missing_entries
