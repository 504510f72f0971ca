"""The estimator: each rule by an example, what holds the watermark, and what a silence does.

Seconds from a fixed start throughout; the band is 10 s unless an example says otherwise.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.watermark.builders import (
    EVERY_SECOND,
    LONG_AGO,
    START_BUCKET,
    at,
    decide,
    effective,
    flat,
    published,
    reading,
    seconds,
    standing_at,
)
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import follow
from tidemark.pipeline.watermark.rules import recent_lag


def test_the_watermark_is_the_least_event_time_of_the_band_and_the_anchor() -> None:
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100))
    assert decision.reason is Reason.ADVANCED
    assert decision.watermark == decision.candidate == at(88)  # what was published at 89, the anchor
    assert (flat(decision).band_start, flat(decision).band_end, flat(decision).anchor) == (at(89), at(100), at(89))
    assert decision.pin is not None
    assert (decision.pin.published_from, decision.pin.min_event_time) == (at(89), at(88))
    assert flat(decision).messages_in_band == 11


def test_the_anchor_was_published_before_the_band_and_not_at_its_beginning() -> None:
    histogram = published([(85, 70), (89.0, 80), (89.999, 81), (95, 90)])
    before = decide(histogram, base=effective(100), tracking=effective(100))
    assert (flat(before).anchor, before.watermark) == (at(89.999), at(81))
    at_its_beginning = decide(histogram, base=effective(99.999), tracking=effective(99.999))
    assert (flat(at_its_beginning).anchor, at_its_beginning.watermark) == (at(89), at(80))


def test_in_a_second_that_the_band_cuts_only_messages_inside_the_band_count() -> None:
    histogram = published([(50, 40), (80.2, 30), (80.6, 60), (89, 85), (99, 98)])
    decision = decide(histogram, base=effective(80.5, observed=100), tracking=effective(100))
    assert (decision.watermark, flat(decision).messages_in_band) == (at(60), 3)
    with_quantile = decide(
        histogram, base=effective(80.5, observed=100), tracking=effective(100), policy=Policy(quantile=0.1)
    )
    assert with_quantile.watermark == at(30)  # of whole seconds, since of a part it would be another quantile


def test_messages_published_after_tracking_s_reading_are_not_in_the_band() -> None:
    histogram = EVERY_SECOND + published([(103, -500)])
    assert decide(histogram, base=effective(100), tracking=effective(100)).watermark == at(88)


# -------------------------------------------------------------------------------------- moving and not moving


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
    assert flat(decision).anchor == at(20)
    assert (decision.reason, decision.pin and decision.pin.published_from) == (Reason.UNCHANGED, at(20))


# ---------------------------------------------------------------------------------------------------- no data


def test_nothing_but_rejected_messages_holds() -> None:
    histogram = published([], rejected=[5, 50, 95])
    for moment in (100, 1000):
        decision = decide(histogram, base=effective(moment), tracking=effective(moment), previous=standing_at(7))
        assert (decision.reason, decision.watermark) == (Reason.HELD_NO_DATA, at(7))


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
            .startswith(f"{reason}: watermark 2026-11-21T05:20:49Z (51s behind when decided); ")
        )
        assert replace(bare, reason=reason).sentence().startswith(f"{reason}: no watermark yet; ")
    assert len({replace(full, reason=reason).sentence().partition(";")[2] for reason in Reason}) == len(Reason)


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


def test_pruned_messages_are_no_hole() -> None:
    pruned = HOLED.pruned(START_BUCKET + 60)
    base, tracking = effective(50.5, observed=100, names=True), effective(100)
    assert decide(pruned, base=base, tracking=tracking).reason is Reason.HELD_INCOMPLETE
    spared = decide(pruned, base=base, tracking=tracking, pruned_before=START_BUCKET + 60)
    assert (spared.reason, spared.complete_from) == (Reason.ADVANCED, LONG_AGO)


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


# ----------------------------------------------------------------------------------------------------- slacks


def test_the_readings_are_reported_without_the_slack() -> None:
    policy = Policy(base_slack=seconds(15), reading_slack=seconds(3))
    decision = decide(EVERY_SECOND, base=effective(80, observed=100), tracking=effective(100), policy=policy)
    assert decision.base is not None
    assert decision.tracking is not None
    assert (decision.base.oldest_unacked, decision.tracking.oldest_unacked) == (at(80), at(100))


def idle_at(moment: float, **more: object) -> Decision:
    return decide(EVERY_SECOND, base=effective(moment), tracking=effective(moment), **more)  # type: ignore[arg-type]


def test_silence_is_not_idle_while_base_may_hold_what_was_published_before_it() -> None:
    # A source catches up in a burst: 40 s behind at 100, 1 s behind at 101. Base holds the first of it ever since.
    caught_up = published([(80, 40), (100, 60), (101, 100)])
    base = effective(100, observed=101, newest=300, names=True)  # no backlog when it was read first
    decision = decide(caught_up, base=base, tracking=effective(300))
    assert (decision.watermark, decision.reason) == (at(60), Reason.ADVANCED)
    landed = decide(caught_up, base=effective(300), tracking=effective(300))
    assert (landed.watermark, landed.reason) == (at(300 - 10 - 1), Reason.IDLE_ADVANCED)


def test_the_idle_watermark_follows_the_lower_of_both_readings_less_their_slack() -> None:
    decision = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300))
    assert decision.watermark == at(295 - 10 - 1)
    policy = Policy(base_slack=seconds(1), reading_slack=seconds(8))
    slack = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300), policy=policy)
    assert slack.watermark == at(300 - 8 - 10 - 1)


def test_event_times_ahead_of_their_publish_time_do_not_push_the_idle_watermark_forward() -> None:
    decision = decide(published([(99, 250)]), base=effective(300), tracking=effective(300))
    assert (flat(decision).recent_lag, decision.watermark) == (seconds(0), at(290))


def test_the_recent_lag_is_the_largest_of_the_newest_bucket_with_an_event_time() -> None:
    histogram = published([(10, -100), (20.25, 15), (20.75, 20)], rejected=[25])
    assert recent_lag(histogram, timedelta(minutes=5)) == seconds(5.25)
    assert recent_lag(Histogram.empty(), timedelta(minutes=5)) == seconds(0)


@pytest.mark.parametrize("behind", ["base", "tracking"])
def test_a_backlog_on_either_subscription_is_not_idle(behind: str) -> None:
    readings = {"base": effective(300), "tracking": effective(300)} | {behind: effective(280, observed=300)}
    decision = decide(EVERY_SECOND, **readings)
    assert decision.reason is (Reason.HELD_TRACKING_BEHIND if behind == "tracking" else Reason.ADVANCED)
    assert flat(decision).recent_lag is None


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
