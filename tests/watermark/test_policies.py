"""Each setting of the policy, through the fold of a log over several ticks: what it does, and what it costs.

A message is published each second and happens a second before, unless a test says otherwise; the band is 10 s.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.watermark.builders import EVERY_SECOND, at, beats, published, reading, seconds
from tests.watermark.fold import Log, outcome
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.histogram import BUCKET_US
from tidemark.pipeline.watermark.policy import Policy

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


def test_idle_hold_stays_with_what_the_last_messages_prove_until_there_are_others() -> None:
    log = silence(Policy(idle="hold"))
    for second in (240, 3600, 7200):
        assert log.tick(second).watermark == at(98)
    assert log.tick(7300).reason is Reason.IDLE_HELD
    log.publish(published(beats(7300, 7400)))
    assert outcome(log.tick(7400)) == (Reason.ADVANCED, at(7388.25))


def test_the_recent_lag_holds_the_idle_watermark_back_up_to_max_idle_lag() -> None:
    for limit, wanted in ((300, 400 - 10 - 61), (30, 400 - 10 - 30), (0, 400 - 10)):
        decision = silence(Policy(max_idle_lag=seconds(limit)), lag=60).tick(400)
        assert decision.reason is Reason.IDLE_ADVANCED
        assert at(wanted) <= decision.watermark <= at(wanted + 1)


def outage(policy: Policy) -> Log:
    """Base is read at second 100 for the last time, and traffic goes on."""
    log = Log(policy, messages=published(beats(0, 100)))
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
    assert first <= held.watermark <= at(100)
    assert outcome(log.tick(400)) == (Reason.ADVANCED, at(388.25))


def test_a_reading_that_says_when_the_next_one_is_due_counts_until_that_is_overdue() -> None:
    """So that readings may be rare, by the budget of snapshots, and an outage of readings still shows."""
    log = Log(Policy(max_reading_age=seconds(200)), messages=published(beats(0, 100)))
    log.read(100, replace(reading(100), next_within=seconds(1000)), reading(100))
    log.publish(published(beats(100, 400)))
    assert log.read(1290, None, reading(1290)).reason is Reason.ADVANCED
    waiting = log.read(1300, None, reading(1300))
    assert waiting.reason is Reason.PINNED_BY_BACKLOG
    assert "is read again by 2026-11-21T05:38:20" in waiting.sentence()
    assert log.read(1300.001, None, reading(1300.001)).reason is Reason.HELD_STALE_READING
    assert "more than 3m20s after the next reading was due" in " ".join(log.explain().sentences())
    # The next reading is at each tick again: it is stale as soon as ever.
    assert log.read(1310, reading(1310), reading(1310)).reason is Reason.IDLE_ADVANCED
    assert log.read(1511, None, reading(1511)).reason is Reason.HELD_STALE_READING


# --------------------------------------------------------------------------------------------- seek_tolerance


@pytest.mark.parametrize(("fall", "is_seek"), [(29.9, False), (30, False), (30.1, True)])
def test_a_reading_that_falls_by_more_than_the_tolerance_is_a_seek_for_one_decision(fall: float, is_seek: bool) -> None:
    log = Log(Policy(seek_tolerance=seconds(30)), messages=published(beats(0, 200)))
    before = log.tick(100, base=95)
    fallen = log.tick(110, base=95 - fall)
    assert (fallen.reason is Reason.HELD_SEEK) == is_seek
    assert fallen.base.oldest_unacked == at(95 - fall if is_seek else 95)
    after = log.tick(120, base=95 - fall)
    assert after.reason is not Reason.HELD_SEEK
    assert after.watermark >= before.watermark


# ----------------------------------------------------------------------------------- slacks, band, max_lag


@pytest.mark.parametrize(
    ("slack", "hidden", "others", "is_tracked"),
    [
        ({"reading_slack": seconds(1)}, (99.5, 87.9), [(88.5, 86.0), (89.8, 88.0)], False),
        ({"base_slack": seconds(15)}, (88.0, 70.0), [(89.5, 80.0)], True),
    ],
    ids=["tracking was read before it was visible", "base does not show it yet, and says that it holds nothing"],
)
def test_a_slack_waits_for_what_a_subscription_shows_late(
    slack: dict[str, timedelta], hidden: tuple[float, float], others: list[tuple[float, float]], is_tracked: bool
) -> None:
    late = []
    for policy in (Policy(), Policy(**slack)):
        log = Log(policy)
        log.publish(published([*([hidden] if is_tracked else []), *others, *((s, s - 1.0) for s in range(90, 100))]))
        late.append(at(hidden[1]) < log.tick(100).watermark)
    assert late == [True, False]


MINUTE = timedelta(minutes=1)


def test_what_lags_exactly_max_lag_holds_and_what_lags_two_seconds_more_does_not() -> None:
    for lag, watermark in ((60.0, 35.25), (62.0, 88)):
        log = Log(Policy(max_lag=MINUTE), messages=EVERY_SECOND + published([(95.25, 95.25 - lag)]))
        assert log.tick(100).watermark == at(watermark)


def test_the_anchor_that_holds_is_never_pruned() -> None:
    log = Log(Policy(max_lag=MINUTE))
    log.publish(published([*beats(0, 50), *((second, second - 600) for second in range(50, 100))]))
    decision = log.tick(110)
    assert (decision.watermark, log.state.pruned_before) == (at(48.25), to_us(at(49)) // BUCKET_US)
    log.publish(published([(112, 111)]))
    assert log.tick(115).watermark == at(48.25)
    assert log.tick(123).watermark == at(111)


def test_where_everything_lags_more_the_explanation_says_so() -> None:
    log = Log(Policy(max_lag=MINUTE), messages=published((second, second - 600) for second in range(100)))
    assert log.tick(120).reason is Reason.HELD_NO_DATA
    assert "that tracking knows of (100 messages) lags more than 1m (max_lag)" in " ".join(log.explain().moves)


def test_the_explanation_counts_what_is_passed_over_and_tries_a_bound() -> None:
    log = Log(Policy(max_lag=timedelta(minutes=10)), messages=EVERY_SECOND + published([(95.5, -3600), (96.5, -90)]))
    assert log.tick(100).watermark == at(-90)
    (text,) = [one.text for one in log.explain().conditions if one.rule == "data"]
    assert text.endswith("These include at most 1 message passed over for a lag of more than 10m (max_lag).")
    tried = {one.setting: one for one in log.explain().alternatives or ()}
    assert (tried["max_lag"].value, tried["max_lag"].watermark) == ("1m", at(88))


def test_before_the_first_watermark_its_age_counts_from_the_begin_of_tracking() -> None:
    log = Log(known_from=0)
    assert log.state.behind(at(60)) is None, "nothing was published yet"
    log.publish(published([], rejected=[5]))
    assert log.state.behind(at(60)) == seconds(60)


@pytest.mark.parametrize(("base", "is_ready"), [(89.1, False), (89, True)])
def test_tracking_has_to_be_a_band_ahead_of_base_as_it_was_read_whatever_its_slack(base: float, is_ready: bool) -> None:
    log = Log(Policy(reading_slack=seconds(1), base_slack=seconds(10)), messages=published(beats(0, 100)))
    assert (log.tick(1300, base=base, tracking=99).reason is not Reason.HELD_TRACKING_BEHIND) == is_ready


def test_a_late_stream_that_base_has_passed_is_not_called_a_backlog() -> None:
    log = Log(Policy(reading_slack=seconds(1), base_slack=seconds(10)), messages=published(beats(0, 89)))
    log.tick(90)
    log.publish(published([*beats(89, 112), (99.5, 60.0)]))
    assert log.tick(112, base=108).reason is Reason.UNCHANGED
