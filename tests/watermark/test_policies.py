"""Each setting of the policy, through the fold of a log over several ticks: what it does, and what it costs. Those
that are about readings have a file of their own.

A message is published each second and happens a second before, unless a test says otherwise; the band is 10 s.
"""

import random
from dataclasses import dataclass

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


def test_after_a_network_outage_idle_advance_makes_the_buffered_late_and_idle_hold_does_not() -> None:
    """The sources buffer for ten minutes, and then publish all of it at once."""
    buffered = [(700 + number / 1000, 100 + number) for number in range(600)]
    late = {}
    for idle in ("advance", "hold"):
        log = silence(Policy(idle=idle))  # type: ignore[arg-type]
        log.tick(400)
        before = log.tick(690).watermark
        assert before is not None
        log.publish(published(buffered))
        log.tick(701, base=700)
        assert log.state.watermark == before
        late[idle] = sum(at(event) < before for _, event in buffered)
    assert late == {"advance": 579, "hold": 0}  # up to 690 - 10 - 1


def test_the_recent_lag_holds_the_idle_watermark_back_up_to_max_idle_lag() -> None:
    for limit, wanted in ((300, 400 - 10 - 61), (30, 400 - 10 - 30), (0, 400 - 10)):
        log = silence(Policy(max_idle_lag=seconds(limit)), lag=60)
        decision = log.tick(400)
        assert decision.reason is Reason.IDLE_ADVANCED
        assert decision.watermark is not None
        assert at(wanted) <= decision.watermark <= at(wanted + 1)


def test_with_a_smaller_max_idle_lag_than_the_sources_have_what_comes_after_a_silence_is_late() -> None:
    after = (405.0, 345.0)  # published after the silence, as old as all before it
    for limit, is_late in ((300, False), (30, True)):
        log = silence(Policy(max_idle_lag=seconds(limit)), lag=60)
        watermark = log.tick(400).watermark
        assert watermark is not None
        assert (at(after[1]) < watermark) == is_late


def test_base_slack_waits_with_silence_as_well_until_base_was_read_that_much_later() -> None:
    """Base was read for the last time 16 s after the last message: it may not have shown that one yet."""
    reasons = {}
    for slack in (0, 30):
        log = silence(Policy(base_slack=seconds(slack)))
        log.tick(115)
        reasons[slack] = log.read(240, None, reading(240)).reason
    assert reasons == {0: Reason.IDLE_ADVANCED, 30: Reason.PINNED_BY_BACKLOG}


# ------------------------------------------------------------------------------------------------ completeness


def test_tracking_that_is_younger_than_base_s_backlog_holds_until_that_has_landed() -> None:
    """Base holds an hour from before tracking; it lands in any order, in 12 ticks."""
    rng = random.Random(3)
    before = [(publish, publish - 1) for publish in range(-3600, 0)]
    since = [(publish + 0.25, publish - 0.75) for publish in range(600)]
    log = Log(known_from=0)
    log.publish(published(since))
    left: list[tuple[float, float]] = [*before, *since]
    rng.shuffle(left)
    reasons, share = [], len(left) // 12
    for step in range(14):
        oldest = min((publish for publish, _ in left), default=None)
        decision = log.tick(610 + step, base=oldest)
        reasons.append(decision.reason)
        landed, left = left[:share], left[share:]
        for _, event in landed:
            assert decision.watermark is None or at(event) >= decision.watermark
        holds_older = oldest is not None and oldest < 0
        assert (decision.reason is Reason.HELD_INCOMPLETE) == holds_older
    assert reasons[0] is Reason.HELD_INCOMPLETE
    assert reasons[-2] is Reason.ADVANCED
    assert log.state.watermark == at(598.25)  # the anchor: all has landed


def test_without_the_completeness_rule_messages_are_late() -> None:
    """The same backlog, with a log that claims to know it: the test above can fail."""
    log = Log(known_from=-4000)
    log.publish(published(beats(0, 600)))
    decision = log.read(610, reading(610, -1800, names=False), reading(610))
    assert decision.watermark is not None
    assert at(-1801) < decision.watermark
