"""The estimator: each rule by an example, and the whole against the same rule on plain lists of messages.

Seconds from a fixed start throughout; the band is 10 s unless an example says otherwise.
"""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.clock import from_us, to_us
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import band_of, estimate, reachable_from, recent_lag
from pipeline.watermark.histogram import BUCKET_US, Histogram, bucket_of
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading, follow
from tests.watermark.builders import (
    LONG_AGO,
    START,
    START_BUCKET,
    START_US,
    Times,
    at,
    bounded,
    decide,
    disorder,
    effective,
    exact_candidate,
    histogram_of,
    published,
    reading,
    seconds,
    standing_at,
)

EVERY_SECOND = published((second, second - 1) for second in range(100))
"""Published at 0, 1, ... 99; each happened one second before."""


# ------------------------------------------------------------------------------------ the band and its anchor


def test_the_watermark_is_the_least_event_time_of_the_band_and_the_anchor() -> None:
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100))
    assert decision.reason is Reason.ADVANCED
    assert decision.watermark == decision.candidate == at(88)  # what was published at 89, the anchor
    assert (decision.band_start, decision.band_end, decision.anchor) == (at(89), at(100), at(89))
    assert decision.pin is not None
    assert (decision.pin.published_from, decision.pin.min_event_time) == (at(89), at(88))
    assert decision.messages_in_band == 11


def test_the_band_reaches_down_to_what_base_has_not_acknowledged() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(100))
    assert decision.watermark == at(49)
    assert (decision.band_start, decision.band_end, decision.anchor) == (at(50), at(100), at(89))


def test_the_band_reaches_back_over_a_silence_to_the_anchor() -> None:
    histogram = published([(10, 3), (40, 2), (95, 90), (99, 94)])
    decision = decide(histogram, base=effective(100), tracking=effective(100))
    assert (decision.watermark, decision.band_start, decision.anchor) == (at(2), at(40), at(40))


def test_the_anchor_was_published_before_the_band_and_not_at_its_beginning() -> None:
    histogram = published([(85, 70), (89.0, 80), (89.999, 81), (95, 90)])
    before = decide(histogram, base=effective(100), tracking=effective(100))
    assert (before.anchor, before.watermark) == (at(89.999), at(81))
    at_its_beginning = decide(histogram, base=effective(99.999), tracking=effective(99.999))
    assert (at_its_beginning.anchor, at_its_beginning.watermark) == (at(89), at(80))


def test_of_a_second_that_the_band_cuts_through_only_what_it_holds_counts() -> None:
    histogram = published([(50, 40), (80.2, 30), (80.6, 60), (89, 85), (99, 98)])
    decision = decide(histogram, base=effective(80.5, observed=100), tracking=effective(100))
    assert (decision.watermark, decision.messages_in_band) == (at(60), 3)
    with_quantile = decide(
        histogram, base=effective(80.5, observed=100), tracking=effective(100), policy=Policy(quantile=0.1)
    )
    assert with_quantile.watermark == at(30)  # of whole seconds, since of a part it would be another quantile


def test_a_rejected_message_is_no_anchor() -> None:
    histogram = published([(40, 2), (95, 90)], rejected=[60, 88, 96])
    decision = decide(histogram, base=effective(100), tracking=effective(100))
    assert (decision.anchor, decision.watermark) == (at(40), at(2))


def test_without_the_anchor_only_the_band_is_looked_at() -> None:
    histogram = published([(40, 2), (95, 90), (99, 94)])
    decision = decide(histogram, base=effective(100), tracking=effective(100), policy=Policy(anchor=False))
    assert (decision.watermark, decision.band_start) == (at(90), at(90))


def test_a_wider_band_holds_the_watermark_back_further() -> None:
    wide = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=Policy(band=seconds(30)))
    assert (wide.watermark, wide.band_start) == (at(68), at(69))


def test_what_was_published_after_tracking_s_reading_is_not_in_the_band() -> None:
    histogram = EVERY_SECOND + published([(103, -500)])
    assert decide(histogram, base=effective(100), tracking=effective(100)).watermark == at(88)


def test_a_band_of_no_width_needs_the_anchor_still() -> None:
    policy = Policy(band=seconds(0))
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=policy)
    assert (decision.watermark, decision.anchor) == (at(98), at(99))


# -------------------------------------------------------------------------------------- moving and not moving


def test_the_watermark_stays_where_it_is_when_the_band_is_not_above_it() -> None:
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), previous=standing_at(95))
    assert (decision.reason, decision.watermark, decision.candidate) == (Reason.UNCHANGED, at(95), at(88))


def test_a_candidate_that_equals_the_watermark_is_no_advance() -> None:
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), previous=standing_at(88))
    assert (decision.reason, decision.watermark) == (Reason.UNCHANGED, at(88))


def test_a_backlog_on_base_pins_the_watermark_and_is_named() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(100), previous=standing_at(49))
    assert (decision.reason, decision.watermark) == (Reason.PINNED_BY_BACKLOG, at(49))


def test_a_pin_that_was_published_before_base_s_backlog_is_not_blamed_on_it() -> None:
    histogram = published([(20, 1), (50, 30), (95, 90)])
    decision = decide(
        histogram, base=effective(45, observed=100), tracking=effective(59.5, observed=100), previous=standing_at(40)
    )
    assert decision.anchor == at(20)
    assert (decision.reason, decision.pin and decision.pin.published_from) == (Reason.UNCHANGED, at(20))


def test_an_operator_s_release_is_never_taken_back() -> None:
    released = replace(standing_at(5000), reason=Reason.RELEASED)
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), previous=released)
    assert (decision.reason, decision.watermark) == (Reason.UNCHANGED, at(5000))


# ----------------------------------------------------------------------------------------------- being ready


def test_tracking_behind_and_not_ahead_of_base_holds() -> None:
    decision = decide(EVERY_SECOND, base=effective(51, observed=100), tracking=effective(60, observed=100))
    assert (decision.reason, decision.watermark) == (Reason.HELD_TRACKING_BEHIND, None)


def test_tracking_ahead_of_base_by_the_band_is_enough() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(60, observed=100))
    assert (decision.reason, decision.watermark) == (Reason.ADVANCED, at(48))


@pytest.mark.parametrize(
    ("age", "reason"), [(10, Reason.ADVANCED), (10.001, Reason.HELD_TRACKING_BEHIND)], ids=["at", "beyond"]
)
def test_tracking_is_near_real_time_up_to_the_setting(age: float, reason: Reason) -> None:
    tracking = effective(90, observed=90 + age)
    assert decide(EVERY_SECOND, base=effective(100), tracking=tracking).reason is reason


def test_near_real_time_is_judged_when_the_effective_reading_was_last_observed() -> None:
    tracking = follow(effective(90, observed=91, names=True), reading(140, 80), seconds(30))  # lower: a redelivery
    assert decide(EVERY_SECOND, base=effective(100), tracking=tracking).reason is Reason.ADVANCED
    stuck = follow(tracking, reading(141, 90), seconds(30))
    assert decide(EVERY_SECOND, base=effective(100), tracking=stuck).reason is Reason.HELD_TRACKING_BEHIND


# ---------------------------------------------------------------------------------------- completeness, holes


def test_base_older_than_what_tracking_knows_holds() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(100), complete_from=at(50.001))
    assert (decision.reason, decision.watermark) == (Reason.HELD_INCOMPLETE, None)
    assert decision.complete_from == at(50.001)


def test_base_at_the_moment_from_which_tracking_knows_is_enough() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(100), complete_from=at(50))
    assert decision.reason is Reason.ADVANCED


HOLED = published((second, second - 1) for second in range(100) if not 50 <= second < 53)


def test_a_message_of_base_that_tracking_never_saw_is_a_hole_that_raises_complete_from() -> None:
    base = effective(50.5, observed=100, names=True)
    decision = decide(HOLED, base=base, tracking=effective(100), previous=standing_at(20))
    assert (decision.reason, decision.watermark) == (Reason.HELD_INCOMPLETE, at(20))
    assert decision.complete_from == at(53)  # tracking's next message


def test_a_hole_holds_until_base_has_passed_it() -> None:
    before = decide(HOLED, base=effective(50.5, observed=100, names=True), tracking=effective(100))
    assert before.complete_from is not None
    inside = effective(52, observed=101, newest=101)
    still = decide(HOLED, base=inside, tracking=effective(100), previous=before, complete_from=before.complete_from)
    assert still.reason is Reason.HELD_INCOMPLETE
    passed = effective(53, observed=102, names=True)
    after = decide(HOLED, base=passed, tracking=effective(100), previous=still, complete_from=before.complete_from)
    assert (after.reason, after.watermark, after.complete_from) == (Reason.ADVANCED, at(52), at(53))


def test_a_hole_never_lowers_what_is_known_about_completeness() -> None:
    base = effective(50.5, observed=100, names=True)
    decision = decide(HOLED, base=base, tracking=effective(100), complete_from=at(70))
    assert decision.complete_from == at(70)


def test_a_hole_with_nothing_known_after_it_ends_at_tracking_s_reading() -> None:
    base = effective(60.5, observed=100, names=True)
    decision = decide(published([(5, 4), (6, 5)]), base=base, tracking=effective(80, observed=100))
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(80))


def test_a_hole_ends_at_tracking_s_reading_even_where_later_messages_are_known() -> None:
    base = effective(60.5, observed=100, names=True)
    decision = decide(published([(5, 4), (95, 90)]), base=base, tracking=effective(80, observed=100))
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(80))


def test_a_rejected_message_fills_a_hole() -> None:
    histogram = HOLED + published([], rejected=[50.9])
    decision = decide(histogram, base=effective(50.5, observed=100, names=True), tracking=effective(100))
    assert (decision.reason, decision.complete_from) == (Reason.ADVANCED, LONG_AGO)


def test_a_reading_that_names_no_message_finds_no_hole() -> None:
    decision = decide(HOLED, base=effective(50.5, observed=100, names=False), tracking=effective(100))
    assert (decision.reason, decision.complete_from) == (Reason.ADVANCED, LONG_AGO)


def test_a_message_that_tracking_has_not_reached_is_no_hole() -> None:
    decision = decide(HOLED, base=effective(105, names=True), tracking=effective(105))
    assert (decision.reason, decision.complete_from) == (Reason.ADVANCED, LONG_AGO)


def test_a_message_that_became_visible_after_its_publish_time_is_a_hole_as_well() -> None:
    policy = Policy(base_slack=seconds(1))
    nothing_yet = effective(50.2)
    base = follow(nothing_yet, reading(100, 50), seconds(30))  # published at 50, visible at 50.5
    assert base is not None
    known = published([(second, second - 1) for second in range(100) if second != 50])
    decision = decide(known, base=base, tracking=effective(100), policy=policy)
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(51))
    without_slack = decide(known, base=base, tracking=effective(100))
    assert without_slack.reason is Reason.ADVANCED  # then the lower one is a redelivery, which has landed


def test_what_was_pruned_is_no_hole() -> None:
    pruned = HOLED.pruned(START_BUCKET + 60)
    base, tracking = effective(50.5, observed=100, names=True), effective(100)
    assert decide(pruned, base=base, tracking=tracking).reason is Reason.HELD_INCOMPLETE
    spared = decide(pruned, base=base, tracking=tracking, pruned_before=START_BUCKET + 60)
    assert (spared.reason, spared.complete_from) == (Reason.ADVANCED, LONG_AGO)


# ---------------------------------------------------------------------------------------------------- no data


def test_nothing_published_at_all_holds() -> None:
    decision = decide(Histogram.empty(), base=effective(100), tracking=effective(100))
    assert (decision.reason, decision.watermark, decision.newest_publish_time) == (Reason.HELD_NO_DATA, None, None)


def test_no_anchor_holds_at_the_very_beginning() -> None:
    decision = decide(published([(95, 90), (99, 94)]), base=effective(100), tracking=effective(100))
    assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)


def test_nothing_but_rejected_messages_holds() -> None:
    histogram = published([], rejected=[5, 50, 95])
    for moment in (100, 1000):
        decision = decide(histogram, base=effective(moment), tracking=effective(moment), previous=standing_at(7))
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, at(7))


# --------------------------------------------------------------------------------------------------- readings


@pytest.mark.parametrize("missing", ["base", "tracking", "both"])
def test_a_missing_reading_holds(missing: str) -> None:
    decision = decide(
        EVERY_SECOND,
        base=None if missing in ("base", "both") else effective(100),
        tracking=None if missing in ("tracking", "both") else effective(100),
        previous=standing_at(42),
    )
    assert (decision.reason, decision.watermark) == (Reason.HELD_STALE_READING, at(42))


@pytest.mark.parametrize("stale", ["base", "tracking"])
def test_a_reading_is_stale_beyond_its_greatest_age(stale: str) -> None:
    readings = {"base": effective(400), "tracking": effective(400)} | {stale: effective(100)}
    assert decide(EVERY_SECOND, **readings, now=400).reason is not Reason.HELD_STALE_READING
    assert decide(EVERY_SECOND, **readings, now=400.001).reason is Reason.HELD_STALE_READING


def test_staleness_is_of_the_newest_observation_and_not_of_the_effective_reading() -> None:
    old = effective(99, observed=100, newest=700)
    decision = decide(EVERY_SECOND, base=old, tracking=old, now=800)
    assert (decision.reason, decision.watermark) == (Reason.ADVANCED, at(87))


@pytest.mark.parametrize("sought", ["base", "tracking"])
def test_a_seek_holds_for_one_decision_and_is_reported(sought: str) -> None:
    before = {"base": effective(100), "tracking": effective(100)}
    after = before | {sought: effective(30, observed=101, epoch=2)}
    previous = standing_at(88, **before)
    reported = decide(EVERY_SECOND, **after, previous=previous)
    assert (reported.reason, reported.watermark) == (Reason.HELD_SEEK, at(88))
    following = decide(EVERY_SECOND, **after, previous=reported)
    assert following.reason is not Reason.HELD_SEEK
    assert following.watermark == at(88)


def test_a_seek_back_never_moves_the_watermark_back() -> None:
    sought = effective(30, observed=101, epoch=2)
    previous = standing_at(88, base=sought, tracking=effective(100))
    decision = decide(EVERY_SECOND, base=sought, tracking=effective(100), previous=previous)
    assert (decision.reason, decision.candidate, decision.watermark) == (Reason.PINNED_BY_BACKLOG, at(29), at(88))


def test_the_first_decision_reports_no_seek() -> None:
    readings = {"base": effective(100, epoch=3), "tracking": effective(100, epoch=5)}
    assert decide(EVERY_SECOND, **readings).reason is Reason.ADVANCED
    assert decide(EVERY_SECOND, **readings, previous=standing_at(None)).reason is Reason.ADVANCED


# ----------------------------------------------------------------------------------------------------- slacks


def test_the_reading_slack_is_taken_off_tracking() -> None:
    policy = Policy(reading_slack=seconds(3))
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=policy)
    assert (decision.band_end, decision.anchor, decision.watermark) == (at(97), at(86), at(85))


def test_the_base_slack_is_taken_off_base() -> None:
    policy = Policy(base_slack=seconds(15))
    decision = decide(EVERY_SECOND, base=effective(80, observed=100), tracking=effective(100), policy=policy)
    assert (decision.band_start, decision.watermark) == (at(65), at(64))
    incomplete = decide(
        EVERY_SECOND, base=effective(80, observed=100), tracking=effective(100), policy=policy, complete_from=at(66)
    )
    assert incomplete.reason is Reason.HELD_INCOMPLETE


def test_the_readings_are_reported_without_the_slack() -> None:
    policy = Policy(base_slack=seconds(15), reading_slack=seconds(3))
    decision = decide(EVERY_SECOND, base=effective(80, observed=100), tracking=effective(100), policy=policy)
    assert decision.base is not None
    assert decision.tracking is not None
    assert (decision.base.oldest_unacked, decision.tracking.oldest_unacked) == (at(80), at(100))


# ------------------------------------------------------------------------------------------------------- idle


def idle_at(moment: float, **more: object) -> Decision:
    return decide(EVERY_SECOND, base=effective(moment), tracking=effective(moment), **more)  # type: ignore[arg-type]


def test_after_a_silence_without_backlog_the_watermark_follows_the_clock() -> None:
    decision = idle_at(300)
    assert decision.reason is Reason.IDLE_ADVANCED
    assert decision.recent_lag == seconds(1)
    assert decision.watermark == at(300 - 10 - 1)


def test_silence_is_idle_only_beyond_the_timeout() -> None:
    assert idle_at(99 + 120).reason is Reason.ADVANCED
    assert idle_at(99 + 120.001).reason is Reason.IDLE_ADVANCED


def test_silence_is_not_idle_while_base_may_hold_what_was_published_before_it() -> None:
    # A source catches up in a burst: 40 s behind at 100, 1 s behind at 101. Base holds the first of it ever since.
    caught_up = published([(80, 40), (100, 60), (101, 100)])
    base = effective(100, observed=101, newest=300, names=True)  # no backlog when it was read first
    decision = decide(caught_up, base=base, tracking=effective(300))
    assert (decision.watermark, decision.reason) == (at(60), Reason.ADVANCED)
    landed = decide(caught_up, base=effective(300), tracking=effective(300))
    assert (landed.watermark, landed.reason) == (at(300 - 10 - 1), Reason.IDLE_ADVANCED)


def test_the_idle_rule_never_moves_the_watermark_back() -> None:
    decision = idle_at(300, previous=standing_at(299))
    assert (decision.reason, decision.watermark, decision.candidate) == (Reason.UNCHANGED, at(299), at(289))


def test_the_idle_watermark_follows_the_lower_of_both_readings_less_their_slack() -> None:
    decision = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300))
    assert decision.watermark == at(295 - 10 - 1)
    policy = Policy(base_slack=seconds(1), reading_slack=seconds(8))
    slack = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300), policy=policy)
    assert slack.watermark == at(300 - 8 - 10 - 1)


def test_a_greater_recent_lag_than_allowed_does_not_hold_the_idle_watermark_back_further() -> None:
    histogram = EVERY_SECOND + published([(99.5, -5000)])
    decision = decide(histogram, base=effective(300), tracking=effective(300))
    assert decision.recent_lag == Policy().max_idle_lag
    assert decision.watermark == at(300 - 10 - 300)


def test_event_times_ahead_of_their_publish_time_do_not_push_the_idle_watermark_forward() -> None:
    decision = decide(published([(99, 250)]), base=effective(300), tracking=effective(300))
    assert (decision.recent_lag, decision.watermark) == (seconds(0), at(290))


def test_the_recent_lag_is_the_largest_of_the_newest_bucket_with_an_event_time() -> None:
    histogram = published([(10, -100), (20.25, 15), (20.75, 20)], rejected=[25])
    assert recent_lag(histogram, timedelta(minutes=5)) == seconds(5.25)
    assert recent_lag(Histogram.empty(), timedelta(minutes=5)) == seconds(0)


def test_idle_set_to_hold_never_advances_on_silence() -> None:
    decision = idle_at(300, policy=Policy(idle="hold"), previous=standing_at(98))
    assert (decision.reason, decision.watermark) == (Reason.IDLE_HELD, at(98))


def test_idle_set_to_hold_still_takes_what_the_last_messages_prove() -> None:
    decision = idle_at(300, policy=Policy(idle="hold"), previous=standing_at(60))
    assert (decision.reason, decision.watermark, decision.anchor) == (Reason.ADVANCED, at(98), at(99))


@pytest.mark.parametrize("behind", ["base", "tracking"])
def test_a_backlog_on_either_subscription_is_not_idle(behind: str) -> None:
    readings = {"base": effective(300), "tracking": effective(300)} | {behind: effective(280, observed=300)}
    decision = decide(EVERY_SECOND, **readings)
    assert decision.reason is (Reason.HELD_TRACKING_BEHIND if behind == "tracking" else Reason.ADVANCED)
    assert decision.recent_lag is None


def test_tracking_s_backlog_is_not_idle_even_where_it_is_ahead_of_an_older_reading_of_base() -> None:
    decision = decide(EVERY_SECOND, base=effective(260, observed=262), tracking=effective(280, observed=300))
    assert (decision.reason, decision.watermark) == (Reason.ADVANCED, at(98))


def test_rejected_messages_do_not_hold_off_the_idle_rule() -> None:
    histogram = EVERY_SECOND + published([], rejected=range(100, 300))
    decision = decide(histogram, base=effective(300), tracking=effective(300))
    assert (decision.reason, decision.watermark) == (Reason.IDLE_ADVANCED, at(289))


def test_a_silence_that_began_before_the_histogram_was_pruned_is_still_idle() -> None:
    pruned = EVERY_SECOND.pruned(START_BUCKET + 99)
    assert decide(pruned, base=effective(300), tracking=effective(300)) == idle_at(300)


# --------------------------------------------------------------------------------------------------- quantile


def test_one_broken_clock_pins_everybody_unless_a_quantile_passes_over_it() -> None:
    broken = published((second, -5000) for second in range(100))
    histogram = broken + published((second, second - 1) for second in range(100) for _ in range(99))
    readings = {"base": effective(100), "tracking": effective(100)}
    assert decide(histogram, **readings).watermark == at(-5000)
    assert decide(histogram, **readings, policy=Policy(quantile=0.01)).watermark == at(88)
    assert decide(histogram, **readings, policy=Policy(quantile=0.009)).watermark == at(-5000)


def test_a_quantile_on_a_backlog_of_two_days_does_not_make_the_backlog_late() -> None:
    two_days = 2 * 24 * 3600
    backlog = [(minute * 60 + tenth / 10, minute * 60 - 3) for minute in range(two_days // 60) for tenth in range(5)]
    for quantile in (0.0, 0.001, 0.1, 0.5):
        decision = decide(
            published(backlog),
            base=effective(0, observed=two_days, names=True),
            tracking=effective(two_days),
            policy=Policy(quantile=quantile),
        )
        assert (decision.reason, decision.watermark) == (Reason.ADVANCED, at(-3))


def test_a_quantile_passes_over_nothing_in_a_bucket_of_few_messages() -> None:
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=Policy(quantile=0.99))
    assert decision.watermark == at(88)


# ------------------------------------------------------------------------------------------- what is recorded


def test_a_decision_says_what_it_rests_on() -> None:
    base, tracking = effective(50, observed=100), effective(100)
    decision = decide(EVERY_SECOND, base=base, tracking=tracking, now=103, complete_from=at(-60))
    assert (decision.at, decision.base, decision.tracking) == (at(103), base, tracking)
    assert (decision.newest_publish_time, decision.complete_from) == (at(99), at(-60))
    assert decision.lag == seconds(103 - 49)


def test_every_reason_has_a_sentence_that_begins_with_it() -> None:
    readings = {"base": effective(50), "tracking": effective(100)}
    full = decide(EVERY_SECOND, **readings)
    bare = Decision(at=at(0), watermark=None, reason=Reason.HELD_NO_DATA)
    for reason in Reason:
        assert (
            replace(full, reason=reason)
            .sentence()
            .startswith(f"{reason}: watermark 2026-11-21T05:20:49Z (51s behind now); ")
        )
        assert replace(bare, reason=reason).sentence().startswith(f"{reason}: no watermark yet; ")
    assert len({replace(full, reason=reason).sentence().partition(";")[2] for reason in Reason}) == len(Reason)


def test_the_reasons_that_wait_for_something_else_are_the_holds() -> None:
    assert {reason for reason in Reason if reason.is_hold} == {
        Reason.HELD_TRACKING_BEHIND,
        Reason.HELD_INCOMPLETE,
        Reason.HELD_NO_DATA,
        Reason.HELD_STALE_READING,
        Reason.HELD_SEEK,
    }


# ------------------------------------------------------------------------------------- against plain lists

TENTH = 100_000
tenths = st.integers(-50, 400).map(lambda tenth: START_US + tenth * TENTH)
timelines = st.lists(st.tuples(tenths, tenths), max_size=40)
moments = st.integers(0, 400).map(lambda tenth: from_us(START_US + tenth * TENTH))
bands = st.sampled_from([0.0, 0.5, 1.0, 2.5, 10.0]).map(seconds)


def ready(oldest: datetime) -> EffectiveReading:
    """A reading without a backlog at its observation."""
    return effective((oldest - START).total_seconds())


@bounded
@given(timelines, moments, moments, bands)
def test_the_estimator_on_cells_is_never_above_the_rule_on_exact_times(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    policy = Policy(band=band, idle="hold")
    decision = decide(histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=policy)
    exact = exact_candidate(messages, base, tracking, band)
    if exact is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    assert decision.watermark is not None
    # What tracking has read beyond its own reading, in the same second, may hold it: with disorder within the band
    # it does not.
    in_that_second = [event for publish, event in messages if publish // BUCKET_US <= to_us(tracking) // BUCKET_US]
    assert min(in_that_second) <= to_us(decision.watermark) <= exact


@bounded
@given(timelines, moments, moments, bands)
def test_where_no_cell_is_cut_through_the_estimator_is_the_rule_on_exact_times(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    apart = list({(publish // BUCKET_US, event // BUCKET_US): (publish, event) for publish, event in messages}.values())
    read = [times for times in apart if times[0] <= to_us(tracking)]
    policy = Policy(band=band, idle="hold")
    decision = decide(histogram_of(read), base=ready(base), tracking=ready(tracking), policy=policy)
    exact = exact_candidate(read, base, tracking, band)
    assert (None if decision.watermark is None else to_us(decision.watermark)) == exact


@bounded
@given(timelines, moments, moments, bands, st.sampled_from([0.1, 0.5]))
def test_with_a_quantile_the_estimator_is_the_rule_on_whole_buckets(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta, quantile: float
) -> None:
    policy = Policy(band=band, idle="hold", quantile=quantile)
    decision = decide(histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=policy)
    if decision.anchor is None or decision.band_start is None:
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, None)
        return
    first, last = bucket_of(decision.band_start), bucket_of(tracking)
    by_bucket: dict[int, list[int]] = {}
    for publish, event in messages:
        if first <= publish // BUCKET_US <= last:
            by_bucket.setdefault(publish // BUCKET_US, []).append(event)
    lowest = []
    for events in by_bucket.values():
        at_quantile = sorted(events)[math.floor(quantile * len(events))]
        lowest.append(min(event for event in events if event // BUCKET_US == at_quantile // BUCKET_US))
    assert decision.watermark == from_us(min(lowest))
    assert decision.messages_in_band == sum(map(len, by_bucket.values()))


@bounded
@given(timelines, moments, moments, bands)
def test_what_can_be_reached_holds_the_whole_band_and_its_anchor(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    histogram, policy = histogram_of(messages), Policy(band=band, idle="hold")
    first = reachable_from(histogram, base, tracking, policy)
    found = band_of(histogram, base, tracking, policy)
    assert first == bucket_of(found.start)
    assert found.anchor is None or first <= bucket_of(found.anchor)
    whole = decide(histogram, base=ready(base), tracking=ready(tracking), policy=policy)
    pruned = decide(
        histogram.pruned(first), base=ready(base), tracking=ready(tracking), policy=policy, pruned_before=first
    )
    assert pruned == whole


@bounded
@given(timelines, moments, moments, bands)
def test_a_second_look_at_the_same_facts_decides_the_same(
    messages: list[Times], base: datetime, tracking: datetime, band: timedelta
) -> None:
    arguments = {"base": ready(base), "tracking": ready(tracking), "policy": Policy(band=band)}
    first = decide(histogram_of(messages), **arguments)  # type: ignore[arg-type]
    assert decide(histogram_of(messages[::-1]), **arguments) == first  # type: ignore[arg-type]
    again = decide(histogram_of(messages), **arguments, previous=first)  # type: ignore[arg-type]
    assert again.watermark == first.watermark


@bounded
@given(timelines, moments, moments)
def test_removing_the_anchor_never_holds_the_watermark_further_back(
    messages: list[Times], base: datetime, tracking: datetime
) -> None:
    anchored = decide(
        histogram_of(messages), base=ready(base), tracking=ready(tracking), policy=Policy(band=seconds(1))
    )
    free = decide(
        histogram_of(messages),
        base=ready(base),
        tracking=ready(tracking),
        policy=Policy(band=seconds(1), anchor=False),
    )
    if anchored.watermark is not None and free.watermark is not None:
        assert free.watermark >= anchored.watermark
    else:
        assert anchored.watermark is None or free.reason is Reason.HELD_NO_DATA


ticks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(-600, 3000), st.integers(-3000, 3000)), max_size=6),  # what is folded
        st.integers(0, 300),  # how long after the tick before
        st.one_of(st.none(), st.integers(0, 1500)),  # base's oldest is so old; None: no reading
        st.one_of(st.none(), st.integers(0, 1500)),  # and tracking's
    ),
    min_size=1,
    max_size=12,
)
policies = st.builds(
    Policy,
    rule=st.sampled_from(["band", "frontier"]),
    band=bands,
    idle=st.sampled_from(["advance", "hold"]),
    quantile=st.sampled_from([0.0, 0.2]),
    reading_slack=st.sampled_from([0.0, 1.0]).map(seconds),
    base_slack=st.sampled_from([0.0, 10.0]).map(seconds),
    anchor=st.booleans(),
)


@bounded
@given(ticks, policies)
def test_the_watermark_never_goes_back(
    schedule: list[tuple[list[tuple[float, float]], int, int | None, int | None]], policy: Policy
) -> None:
    histogram = Histogram.empty()
    base: EffectiveReading | None = None
    tracking: EffectiveReading | None = None
    previous: Decision | None = None
    now = 0
    for folded, later, base_age, tracking_age in schedule:
        now += later
        histogram += published(folded)
        base = follow(base, _aged(now, base_age), policy.seek_tolerance)
        tracking = follow(tracking, _aged(now, tracking_age), policy.seek_tolerance)
        decision = estimate(
            histogram,
            base=base,
            tracking=tracking,
            policy=policy,
            previous=previous,
            complete_from=LONG_AGO if previous is None or previous.complete_from is None else previous.complete_from,
            at=at(now),
        )
        if previous is not None and previous.watermark is not None:
            assert decision.watermark is not None
            assert decision.watermark >= previous.watermark
            assert (decision.watermark > previous.watermark) == (
                decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED)
            )
        if previous is not None and previous.complete_from is not None:
            assert decision.complete_from is not None
            assert decision.complete_from >= previous.complete_from
        previous = decision


def _aged(now: int, age: int | None) -> Reading | None:
    return None if age is None else reading(now, now - age)


# --------------------------------------------------------------------------------------------------- disorder


def test_one_stream_that_is_always_late_among_punctual_ones_is_disorder() -> None:
    punctual = [(second * 1_000_000, second * 1_000_000) for second in range(0, 300, 10)]
    late = [((second + 60) * 1_000_000, second * 1_000_000) for second in range(5, 300, 10)]
    assert disorder(punctual) == disorder(late) == 0
    assert (
        disorder(punctual + late) == 55_000_000
    )  # a punctual message that happened 5 s after the late one was published 55 s before it


def test_a_common_delay_is_no_disorder() -> None:
    assert disorder([(second + 3600, second) for second in range(50)]) == 0
    assert disorder([]) == disorder([(5, 1)]) == disorder([(5, 1), (9, 1)]) == 0
