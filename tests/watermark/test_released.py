"""An operator's release, through the whole fold: how far it reaches, and when it ends. And what a lost entry holds.

One message is published every second and happens a second before; base holds the one of second 50 and no other.
"""

import pytest

from tests.watermark.builders import at, published, reading, seconds
from tests.watermark.fold import Log, outcome
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, Entry, Lost, Snapshot, WatermarkState

STRAGGLER = 50.25
"""When the message that base holds was published; it happened at 49.25."""

EVERY_SECOND = published((second + 0.25, second - 0.75) for second in range(200))


@pytest.fixture
def pinned() -> Log:
    """At second 100: all is tracked, base holds the straggler."""
    log = Log(messages=EVERY_SECOND)
    assert log.tick(100, base=STRAGGLER).watermark == at(49.25)
    return log


def test_a_release_lets_the_watermark_pass_what_base_holds_to_the_moment(pinned: Log) -> None:
    assert outcome(pinned.tick(101, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(49.25))
    pinned.release(STRAGGLER)
    assert outcome(pinned.tick(102, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(49.25))
    pinned.release(50.9)
    decision = pinned.tick(103, base=STRAGGLER)
    assert outcome(decision) == (Reason.RELEASED, at(50.25))  # what was published at 51, the first not let go
    assert decision.released_before == at(50.9)
    assert decision.base.oldest_unacked == at(STRAGGLER)  # as it was read: the release is no reading


def test_a_further_release_counts_an_earlier_one_takes_nothing_back_and_later_messages_hold(pinned: Log) -> None:
    pinned.release(60)
    assert outcome(pinned.tick(102, base=STRAGGLER)) == (Reason.RELEASED, at(59.25))
    pinned.release(80)
    assert outcome(pinned.tick(103, base=STRAGGLER)) == (Reason.RELEASED, at(79.25))
    pinned.release(70)
    assert pinned.state.released_before == at(80)
    assert outcome(pinned.tick(104, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(79.25))
    later = pinned.tick(150, base=STRAGGLER)
    assert outcome(later) == (Reason.PINNED_BY_BACKLOG, at(79.25))
    assert "released messages" in later.sentence()
    landed = pinned.tick(151)
    assert outcome(landed) == (Reason.ADVANCED, at(139.25))  # published at 140, the anchor
    assert landed.released_before is None


def test_a_seek_of_base_ends_the_release(pinned: Log) -> None:
    pinned.release(80)
    pinned.tick(102, base=STRAGGLER)
    sought = pinned.tick(103, base=5.25)  # more than the tolerance below
    assert outcome(sought) == (Reason.HELD_SEEK, at(79.25))
    assert pinned.state.released_before is None
    after = pinned.tick(104, base=5.25)
    assert outcome(after) == (Reason.PINNED_BY_BACKLOG, at(79.25))
    assert after.candidate < at(51)  # what is replayed holds again


def test_a_hole_is_found_although_an_older_release_lies_within_the_slack_of_it() -> None:
    log = Log(Policy(base_slack=seconds(10)))
    log.publish(published((second, second - 1) for second in range(200) if second != 100))
    log.release(95)
    decision = log.tick(120, base=100.5)
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(101))


def test_a_message_that_tracking_never_saw_no_longer_holds_once_it_is_let_go() -> None:
    log = Log(messages=published((second, second - 1) for second in range(200) if not 50 <= second < 53))
    hole = log.tick(100, base=50.5)
    assert (hole.reason, hole.complete_from) == (Reason.HELD_INCOMPLETE, at(53))
    log.release(52)
    assert log.tick(101, base=50.5).reason is Reason.HELD_INCOMPLETE  # the hole reaches further
    log.release(53)
    assert outcome(log.tick(102, base=50.5)) == (Reason.RELEASED, at(52))


def test_an_incomplete_histogram_is_overridden_only_as_far_as_it_is_let_go() -> None:
    log = Log(known_from=70, messages=EVERY_SECOND)
    assert log.tick(100, base=STRAGGLER).reason is Reason.HELD_INCOMPLETE
    log.release(69.9)
    assert log.tick(101, base=STRAGGLER).reason is Reason.HELD_INCOMPLETE
    log.release(70)
    assert outcome(log.tick(102, base=STRAGGLER)) == (Reason.RELEASED, at(69.25))


def test_a_lost_entry_holds_against_an_older_release(pinned: Log) -> None:
    pinned.release(80)
    pinned.write(Lost("beyond repair"))
    held = pinned.tick(102, base=STRAGGLER)
    assert (held.reason, held.complete_from) == (Reason.HELD_INCOMPLETE, at(102))
    pinned.release(102)
    assert pinned.tick(150, base=STRAGGLER).reason is Reason.RELEASED


def test_with_a_straggler_let_go_silence_is_not_idle(pinned: Log) -> None:
    """What base holds besides is not known, so the assumption of the idle rule cannot be made."""
    pinned.release(300)
    decision = pinned.tick(400, base=STRAGGLER)
    assert outcome(decision) == (Reason.RELEASED, at(198.25))  # the anchor, the last that was published
    assert pinned.tick(500, base=STRAGGLER).watermark == at(198.25)


# ------------------------------------------------------------------------------------------------ lost entries

LOST = Lost("its object was damaged")


def folded(entries: list[Entry]) -> WatermarkState:
    state = WatermarkState()
    for number, entry in enumerate(entries):
        state = state.after(number, entry)
    return state


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
