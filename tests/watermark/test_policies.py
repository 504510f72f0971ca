"""Each setting of the policy, through the fold of a log over several ticks: what it does, and what it costs.

A message is published each second and happens a second before, unless a test says otherwise; the band is 10 s.
"""

import random
from dataclasses import dataclass, replace

import pytest

from tests.watermark.builders import START_US, Times, at, beats, histogram_of, published, reading, seconds
from tests.watermark.fold import Log, outcome
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy

SECOND_US = 1_000_000
DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class Drained:
    """What came of a backlog: its decisions, and what landed below the watermark of that moment."""

    decisions: list[Decision]
    late: list[Times]


def drain(log: Log, backlog: list[Times], *, now: float, steps: int, seed: int = 0) -> Drained:
    """Tracking reads all of a backlog, then base lands it in random order, a share after each tick."""
    log.publish(histogram_of(backlog))
    left = backlog[:]
    random.Random(seed).shuffle(left)
    found = Drained([], [])
    for step in range(steps + 1):
        oldest = min((publish for publish, _ in left), default=None)
        base = reading(now + 10 * step, None if oldest is None else (oldest - START_US) / SECOND_US)
        decision = log.read(now + 10 * step, base, reading(now + 10 * step))
        found.decisions.append(decision)
        watermark = None if decision.watermark is None else to_us(decision.watermark)
        share = -(-len(backlog) // steps)
        landed, left = left[:share], left[share:]
        found.late.extend(beat for beat in landed if watermark is not None and beat[1] < watermark)
    return found


def two_days(broken_every: int = 0) -> list[Times]:
    """Twenty messages within a second of each minute of two days, at most three seconds old; of every so many minutes
    one message has a clock that is a month slow."""
    rng = random.Random(7)
    messages = []
    for minute in range(2 * DAY // 60):
        for number in range(20):
            publish = START_US + minute * 60 * SECOND_US + rng.randrange(SECOND_US)
            slow = broken_every and number == 0 and minute % broken_every == 0
            messages.append((publish, publish - (30 * DAY if slow else rng.randrange(1, 4)) * SECOND_US))
    return messages


# ---------------------------------------------------------------------------------------------------- quantile


@pytest.mark.parametrize("quantile", [0.001, 0.05, 0.2])
def test_a_quantile_makes_no_more_than_its_share_of_each_second_late_on_a_backlog_of_two_days(quantile: float) -> None:
    """Never the lowest share of the whole backlog, which is what lands next."""
    backlog = two_days()
    drained = drain(Log(Policy(quantile=quantile)), backlog, now=2 * DAY, steps=6)
    late: dict[int, int] = {}
    for publish, _ in drained.late:
        late[publish // SECOND_US] = late.get(publish // SECOND_US, 0) + 1
    assert all(count <= quantile * 20 for count in late.values())
    lowest = sorted(backlog, key=lambda beat: beat[1])[: len(backlog) // 1000]
    assert len(set(lowest) & set(drained.late)) < len(lowest) / 2


def test_a_clock_that_is_a_month_slow_pins_everybody_unless_a_quantile_passes_over_it() -> None:
    broken = two_days(broken_every=10)
    exact = drain(Log(), broken, now=2 * DAY, steps=4)
    passing = drain(Log(Policy(quantile=0.05)), broken, now=2 * DAY, steps=4)
    assert exact.decisions[2].watermark is not None
    assert exact.decisions[2].watermark < at(-29 * DAY)
    assert exact.late == []
    assert passing.decisions[2].watermark is not None
    assert passing.decisions[2].watermark >= at(-4)
    month_old = [beat for beat in passing.late if beat[0] - beat[1] > 29 * DAY * SECOND_US]
    assert month_old  # knowingly late
    assert len(passing.late) <= 0.05 * len(broken)


# ------------------------------------------------------------------------------------------- idle, max_idle_lag


def silence(policy: Policy, *, lag: float = 1) -> Log:
    """Traffic with a lag until second 100, ticked, and then nothing."""
    log = Log(policy)
    for second in range(20, 101, 20):
        log.publish(published((beat, beat - lag) for beat in range(second - 20, second)))
        log.tick(second)
    return log


def test_idle_advance_follows_the_clock_from_the_timeout_on_and_the_traffic_again_after_it() -> None:
    log = silence(Policy(idle="advance"))
    assert log.tick(160).watermark == at(98)  # the anchor, published at 99
    assert outcome(log.tick(219)) == (Reason.UNCHANGED, at(98))
    moved = [log.tick(second).watermark for second in (220, 240, 260)]
    assert moved == [at(second - 10 - 1) for second in (220, 240, 260)]
    log.publish(published(beats(260, 300)))
    assert outcome(log.tick(300)) == (Reason.ADVANCED, at(288.25))


@pytest.mark.parametrize("timeout", [30, 300])
def test_the_idle_timeout_says_how_long_a_pause_is_a_silence(timeout: int) -> None:
    log = silence(Policy(idle_timeout=seconds(timeout)))
    assert log.tick(99 + timeout).reason is not Reason.IDLE_ADVANCED
    assert log.tick(100 + timeout).reason is Reason.IDLE_ADVANCED


def test_idle_hold_stays_with_what_the_last_messages_prove_until_there_are_others() -> None:
    log = silence(Policy(idle="hold"))
    for second in (240, 3600, 7200):
        assert log.tick(second).watermark == at(98)
    assert log.tick(7300).reason is Reason.IDLE_HELD
    log.publish(published(beats(7300, 7400)))
    assert outcome(log.tick(7400)) == (Reason.ADVANCED, at(7388.25))


def test_the_recent_lag_holds_the_idle_watermark_back_up_to_max_idle_lag() -> None:
    for limit, wanted in ((300, 400 - 10 - 61), (30, 400 - 10 - 30), (0, 400 - 10)):
        log = silence(Policy(max_idle_lag=seconds(limit)), lag=60)
        decision = log.tick(400)
        assert decision.reason is Reason.IDLE_ADVANCED
        assert decision.watermark is not None
        assert at(wanted) <= decision.watermark <= at(wanted + 1)


def test_base_slack_waits_with_silence_as_well_until_base_was_read_that_much_later() -> None:
    """Base was read for the last time 16 s after the last message: it may not have shown that one yet."""
    reasons = {}
    for slack in (0, 30):
        log = silence(Policy(base_slack=seconds(slack)))
        log.tick(115)
        reasons[slack] = log.read(240, None, reading(240)).reason
    assert reasons == {0: Reason.IDLE_ADVANCED, 30: Reason.PINNED_BY_BACKLOG}


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
