"""An operator's release, through the whole fold: what it lets go, how far it reaches, and when it ends.

One message is published every second and happens a second before; base holds the one of second 50 and no other.
"""

import pytest

from tests.watermark.builders import at, flat, published, reading, seconds
from tests.watermark.fold import Log, outcome
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Compacted, Lost, WatermarkState

STRAGGLER = 50.25
"""When the message that base holds was published; it happened at 49.25."""

EVERY_SECOND = published((second + 0.25, second - 0.75) for second in range(200))


@pytest.fixture
def pinned() -> Log:
    """At second 100: all is tracked, base holds the straggler."""
    log = Log()
    log.publish(EVERY_SECOND)
    assert log.tick(100, base=STRAGGLER).watermark == at(49.25)
    return log


def test_a_release_lets_the_watermark_pass_what_base_holds(pinned: Log) -> None:
    assert outcome(pinned.tick(101, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(49.25))
    pinned.release(51)
    decision = pinned.tick(102, base=STRAGGLER)
    assert outcome(decision) == (Reason.RELEASED, at(50.25))  # what was published at 51, the first not let go
    assert decision.released_before == at(51)
    assert decision.base is not None
    assert decision.base.oldest_unacked == at(STRAGGLER)  # as it was read: the release is no reading


def test_messages_published_after_the_release_hold_as_before_until_base_has_passed_them(pinned: Log) -> None:
    pinned.release(80)
    assert outcome(pinned.tick(102, base=STRAGGLER)) == (Reason.RELEASED, at(79.25))
    later = pinned.tick(150, base=STRAGGLER)
    assert outcome(later) == (Reason.PINNED_BY_BACKLOG, at(79.25))
    assert "released messages" in later.sentence()
    landed = pinned.tick(151)
    assert outcome(landed) == (Reason.ADVANCED, at(139.25))  # published at 140, the anchor
    assert landed.released_before is None


def test_a_release_takes_effect_to_the_moment(pinned: Log) -> None:
    pinned.release(STRAGGLER)
    assert outcome(pinned.tick(102, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(49.25))
    pinned.release(50.9)
    assert outcome(pinned.tick(103, base=STRAGGLER)) == (Reason.RELEASED, at(50.25))


def test_a_release_beyond_what_tracking_has_read_waits_for_tracking(pinned: Log) -> None:
    pinned.release(180)
    held = pinned.read(190, reading(190, STRAGGLER), reading(190, 150))
    assert outcome(held) == (Reason.HELD_TRACKING_BEHIND, at(49.25))
    ahead = pinned.read(191, reading(191, STRAGGLER), reading(191, 190))
    assert outcome(ahead) == (Reason.RELEASED, at(178.25))  # the anchor of tracking's 190, below the release


def test_a_second_release_goes_further_and_an_earlier_one_takes_nothing_back(pinned: Log) -> None:
    pinned.release(60)
    assert outcome(pinned.tick(102, base=STRAGGLER)) == (Reason.RELEASED, at(59.25))
    pinned.release(80)
    assert outcome(pinned.tick(103, base=STRAGGLER)) == (Reason.RELEASED, at(79.25))
    pinned.release(70)
    assert pinned.state.released_before == at(80)
    assert outcome(pinned.tick(104, base=STRAGGLER)) == (Reason.PINNED_BY_BACKLOG, at(79.25))


def test_a_restart_from_a_compacted_entry_keeps_the_release(pinned: Log) -> None:
    pinned.release(80)
    restarted = Log()
    restarted.state = WatermarkState()
    restarted.write(Compacted(pinned.state))
    assert restarted.state.released_before == at(80)
    assert outcome(restarted.tick(102, base=STRAGGLER)) == (Reason.RELEASED, at(79.25))


def test_a_seek_of_base_ends_the_release(pinned: Log) -> None:
    pinned.release(80)
    pinned.tick(102, base=STRAGGLER)
    sought = pinned.tick(103, base=5.25)  # more than the tolerance below
    assert outcome(sought) == (Reason.HELD_SEEK, at(79.25))
    assert pinned.state.released_before is None
    after = pinned.tick(104, base=5.25)
    assert outcome(after) == (Reason.PINNED_BY_BACKLOG, at(79.25))
    assert after.candidate is not None
    assert after.candidate < at(51)  # what is replayed holds again


def test_a_release_that_base_has_passed_changes_nothing_and_leaves_the_slack_whole() -> None:
    """Base's reading less its slack lies below the release, and its reading does not: nothing is let go."""
    decisions = []
    for is_released in (False, True):
        log = Log(Policy(base_slack=seconds(30), reading_slack=seconds(1)))
        log.publish(EVERY_SECOND)
        if is_released:
            log.release(95)
        decisions.append(log.tick(120, base=100.25))
    assert decisions[0] == decisions[1]
    assert outcome(decisions[1]) == (Reason.ADVANCED, at(69.25))  # published at 100.25 - 30 s of slack


def test_a_hole_is_found_although_an_older_release_lies_within_the_slack_of_it() -> None:
    log = Log(Policy(base_slack=seconds(10)))
    log.publish(published((second, second - 1) for second in range(200) if second != 100))
    log.release(95)
    decision = log.tick(120, base=100.5)
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(101))


def test_slack_is_not_taken_off_a_release() -> None:
    log = Log(Policy(base_slack=seconds(30), reading_slack=seconds(1)))
    log.publish(EVERY_SECOND)
    assert log.tick(100, base=STRAGGLER).watermark == at(19.25)
    log.release(80)
    assert outcome(log.tick(101, base=STRAGGLER)) == (Reason.RELEASED, at(79.25))


def test_a_message_that_tracking_never_saw_no_longer_holds_once_it_is_let_go() -> None:
    log = Log()
    log.publish(published((second, second - 1) for second in range(200) if not 50 <= second < 53))
    hole = log.tick(100, base=50.5)
    assert (hole.reason, hole.complete_from) == (Reason.HELD_INCOMPLETE, at(53))
    log.release(52)
    assert log.tick(101, base=50.5).reason is Reason.HELD_INCOMPLETE  # the hole reaches further
    log.release(53)
    assert outcome(log.tick(102, base=50.5)) == (Reason.RELEASED, at(52))


def test_an_incomplete_histogram_is_overridden_only_as_far_as_it_is_let_go() -> None:
    log = Log(known_from=70)
    log.publish(EVERY_SECOND)
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


def test_a_release_does_not_move_what_is_pruned(pinned: Log) -> None:
    before = pinned.state.histogram
    pinned.release(80)
    pinned.tick(102, base=STRAGGLER)
    assert pinned.state.histogram == before
    pinned.tick(103)
    assert pinned.state.pruned_before is not None
    assert len(pinned.state.histogram) < len(before)


def test_the_rule_frontier_passes_a_straggler_that_was_let_go() -> None:
    log = Log(Policy(rule="frontier"))
    log.publish(published((second, second) for second in range(100)))
    assert outcome(log.tick(100, base=50)) == (Reason.ADVANCED, at(50))
    log.release(51)
    released = log.tick(101, base=50)
    assert outcome(released) == (Reason.RELEASED, at(51))
    log.release(100)
    further = log.tick(102, base=50)
    assert outcome(further) == (Reason.RELEASED, at(91))  # the frontier: published a band ago
    assert flat(further).frontier == at(91)
