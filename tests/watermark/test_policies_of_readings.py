"""Each setting of the policy that is about readings, through the fold of a log over several ticks.

A message is published each second and happens a second before, unless a test says otherwise; the band is 10 s.
"""

from dataclasses import replace

import pytest

from tests.watermark.builders import at, beats, published, reading, seconds
from tests.watermark.fold import Log, outcome
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy

# -------------------------------------------------------------------------------------------- max_reading_age


def outage(policy: Policy) -> Log:
    """Base is read at second 100 for the last time, and traffic goes on."""
    log = Log(policy)
    log.publish(published(beats(0, 100)))
    log.tick(100)
    log.publish(published(beats(100, 400)))
    return log


def test_without_a_reading_the_last_one_counts_until_it_is_too_old() -> None:
    log = outage(Policy(max_reading_age=seconds(200)))
    first = log.state.watermark
    reasons = [log.read(second, None, reading(second)).reason for second in (150, 250, 300)]
    assert reasons == [Reason.ADVANCED, Reason.PINNED_BY_BACKLOG, Reason.PINNED_BY_BACKLOG]
    held = log.read(300.001, None, reading(300.001))
    assert held.reason is Reason.HELD_STALE_READING
    assert held.watermark is not None
    assert first is not None
    assert first <= held.watermark <= at(100)
    assert outcome(log.tick(400)) == (Reason.ADVANCED, at(388.25))


def test_a_reading_that_says_when_the_next_one_is_due_counts_until_that_is_overdue() -> None:
    """So that readings may be rare, by the budget of snapshots, and an outage of readings still shows."""
    log = Log(Policy(max_reading_age=seconds(200)))
    log.publish(published(beats(0, 100)))
    log.read(100, replace(reading(100), next_within=seconds(1000)), reading(100))
    log.publish(published(beats(100, 400)))
    assert log.read(1290, None, reading(1290)).reason is Reason.ADVANCED
    waiting = log.read(1300, None, reading(1300))
    assert waiting.reason is Reason.PINNED_BY_BACKLOG
    assert "is read again by 2026-11-21T05:38:20" in waiting.sentence()
    held = log.read(1300.001, None, reading(1300.001))
    assert held.reason is Reason.HELD_STALE_READING
    assert "more than 3m20s after the next reading was due" in " ".join(log.explain().sentences())
    # The next reading is at each tick again: it is stale as soon as ever.
    assert log.read(1310, reading(1310), reading(1310)).reason.is_move
    assert log.read(1511, None, reading(1511)).reason is Reason.HELD_STALE_READING


# --------------------------------------------------------------------------------------------- seek_tolerance


@pytest.mark.parametrize(("fall", "is_seek"), [(29.9, False), (30, False), (30.1, True)])
def test_a_reading_that_falls_by_more_than_the_tolerance_is_a_seek_for_one_decision(fall: float, is_seek: bool) -> None:
    log = Log(Policy(seek_tolerance=seconds(30)))
    log.publish(published(beats(0, 200)))
    before = log.tick(100, base=95)
    fallen = log.tick(110, base=95 - fall)
    assert (fallen.reason is Reason.HELD_SEEK) == is_seek
    assert fallen.base is not None
    assert fallen.base.oldest_unacked == at(95 - fall if is_seek else 95)
    after = log.tick(120, base=95 - fall)
    assert after.reason is not Reason.HELD_SEEK
    assert after.watermark is not None
    assert before.watermark is not None
    assert after.watermark >= before.watermark


@pytest.mark.parametrize("which", ["base", "tracking"])
def test_a_smaller_tolerance_notices_a_small_seek_of_either_subscription(which: str) -> None:
    reasons = []
    for tolerance in (0, 60):
        log = Log(Policy(seek_tolerance=seconds(tolerance)))
        log.publish(published(beats(0, 200)))
        log.tick(100, **{which: 95})
        reasons.append(log.tick(110, **{which: 90}).reason is Reason.HELD_SEEK)
    assert reasons == [True, False]


# ----------------------------------------------------------------------------------------------------- slacks


def test_reading_slack_waits_for_what_tracking_shows_a_moment_late() -> None:
    """Published at 99.5, not visible when tracking was read at 100; among the others its disorder is below the band."""
    hidden = (99.5, 87.9)
    others = [(88.5, 86.0), (89.8, 88.0), *((second, second - 1.0) for second in range(90, 100))]
    late = {}
    for slack in (0, 1):
        log = Log(Policy(reading_slack=seconds(slack)))
        log.publish(published(others))
        watermark = log.tick(100).watermark
        assert watermark is not None
        late[slack] = at(hidden[1]) < watermark
    assert late == {0: True, 1: False}


def test_base_slack_waits_for_what_base_shows_late() -> None:
    """Tracking has read what was published at 88, base does not show it yet, and says that it holds nothing."""
    hidden = (88.0, 70.0)
    others = [(89.5, 80.0), *((second, second - 1.0) for second in range(90, 100))]
    late = {}
    for slack in (0, 15):
        log = Log(Policy(base_slack=seconds(slack)))
        log.publish(published([hidden, *others]))
        watermark = log.tick(100).watermark
        assert watermark is not None
        late[slack] = at(hidden[1]) < watermark
    assert late == {0: True, 15: False}


# ------------------------------------------------------------------------------------- near_real_time, band


def test_tracking_with_a_backlog_must_be_ahead_of_base_by_the_band() -> None:
    reasons = {}
    for band in (9, 10, 11, 20):
        log = Log(Policy(band=seconds(band)))
        log.publish(published(beats(0, 100)))
        reasons[band] = log.tick(120, base=80, tracking=90).reason
    assert reasons == {
        9: Reason.ADVANCED,
        10: Reason.ADVANCED,
        11: Reason.HELD_TRACKING_BEHIND,
        20: Reason.HELD_TRACKING_BEHIND,
    }
