"""The estimator: what holds the watermark, and what counts as a reading. Seconds from a fixed start; a band of 10 s."""

import pytest

from tests.watermark.builders import (
    EVERY_SECOND,
    LONG_AGO,
    START_BUCKET,
    at,
    decide,
    effective,
    published,
    reading,
    seconds,
    standing_at,
)
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import follow

# ----------------------------------------------------------------------------------------------- being ready


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
