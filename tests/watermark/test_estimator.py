"""The estimator: each rule by an example. Its laws are in `test_estimator_laws.py`, and the simulation plants faults.

Seconds from a fixed start throughout; the band is 10 s unless an example says otherwise.
"""

from dataclasses import replace
from typing import Any

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
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import follow

TOLERANCE = seconds(30)


def test_the_watermark_is_the_least_event_time_of_the_band_and_the_anchor() -> None:
    alone = decide(published([(50, 30)]), base=effective(100), tracking=effective(100))
    assert "(at most 1 message)" in alone.sentence()
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100))
    assert decision.reason is Reason.ADVANCED
    assert decision.watermark == decision.candidate == at(88)  # what was published at 89, the anchor
    assert (flat(decision).band_start, flat(decision).band_end, flat(decision).anchor) == (at(89), at(100), at(89))
    assert (decision.pin.published_from, decision.pin.min_event_time) == (at(89), at(88))
    assert flat(decision).messages_in_band == 11


def test_a_late_stream_that_has_landed_does_not_hold_the_frontier_as_it_holds_the_band() -> None:
    one_is_late = EVERY_SECOND + published([(second + 0.5, second - 60) for second in range(0, 100, 10)])
    frontier = Policy(rule="frontier")
    assert decide(one_is_late, base=effective(100), tracking=effective(100), policy=frontier).watermark == at(88)
    assert decide(one_is_late, base=effective(100), tracking=effective(100)).watermark == at(30)


def test_a_pin_that_was_published_before_base_s_backlog_is_not_blamed_on_it() -> None:
    histogram = published([(20, 1), (50, 30), (95, 90)])
    decision = decide(
        histogram, base=effective(45, observed=100), tracking=effective(59.5, observed=100), previous=standing_at(40)
    )
    assert flat(decision).anchor == at(20)
    assert (decision.reason, decision.pin and decision.pin.published_from) == (Reason.UNCHANGED, at(20))


# --------------------------------------------------------------------------------------------------- readings


def test_a_reading_is_stale_beyond_its_greatest_age_by_its_newest_observation() -> None:
    now, old, seen_again = effective(800), effective(500), effective(99, observed=100, newest=500)
    for readings in ({"base": old}, {"tracking": old}, {"base": seen_again, "tracking": seen_again}):
        both = {"base": now, "tracking": now} | readings
        assert decide(EVERY_SECOND, **both, now=800).reason is not Reason.HELD_STALE_READING
        assert decide(EVERY_SECOND, **both, now=800.001).reason is Reason.HELD_STALE_READING
    assert decide(EVERY_SECOND, base=now, tracking=None).reason is Reason.HELD_STALE_READING


def test_tracking_is_near_now_up_to_the_setting_when_the_effective_reading_was_last_observed() -> None:
    for age, reason in ((10, Reason.ADVANCED), (10.001, Reason.HELD_TRACKING_BEHIND)):
        tracking = effective(90, observed=90 + age)
        assert decide(EVERY_SECOND, base=effective(100), tracking=tracking).reason is reason
    tracking = follow(effective(90, observed=91, names=True), reading(140, 80), TOLERANCE)  # lower: a redelivery
    assert decide(EVERY_SECOND, base=effective(100), tracking=tracking).reason is Reason.ADVANCED
    stuck = follow(tracking, reading(141, 90), TOLERANCE)
    assert decide(EVERY_SECOND, base=effective(100), tracking=stuck).reason is Reason.HELD_TRACKING_BEHIND


def test_an_observation_from_before_a_seek_changes_nothing() -> None:
    sought = follow(follow(None, reading(100, 90), TOLERANCE), reading(200, 10), TOLERANCE)
    assert sought.epoch == 2
    assert follow(sought, reading(199, 195), TOLERANCE) is sought


# ---------------------------------------------------------------------------------------------------- holes

HOLED = published((second, second - 1) for second in range(100) if not 50 <= second < 53)
IN_THE_HOLE = effective(50.5, observed=100, names=True)


@pytest.mark.parametrize(
    ("oldest", "tracking", "known", "known_from", "ends"),
    [
        (50.5, 100, HOLED, -60, 53),
        (50.5, 100, HOLED, 70, 70),
        (60.5, 80, published([(5, 4)]), -60, 80),
        (60.5, 80, published([(5, 4), (95, 90)]), -60, 80),
    ],
    ids=["tracking's next message", "as before, if that is later", "none is known: T", "the next is beyond T: T"],
)
def test_a_message_of_base_that_tracking_never_saw_is_a_hole(
    oldest: float, tracking: float, known: Any, known_from: float, ends: float
) -> None:
    base = effective(oldest, observed=100, names=True)
    read = effective(tracking, observed=100)
    decision = decide(known, base=base, tracking=read, complete_from=at(known_from), previous=standing_at(20))
    assert (decision.reason, decision.watermark) == (Reason.HELD_INCOMPLETE, at(20))
    assert decision.complete_from == at(ends)


@pytest.mark.parametrize(
    ("changed", "pruned_before"),
    [
        ({"histogram": HOLED + published([], rejected=[50.9])}, None),
        ({"base": replace(IN_THE_HOLE, names_a_message=False, newest=reading(100))}, None),
        ({"base": effective(105, names=True), "tracking": effective(105)}, None),
        ({"histogram": HOLED.pruned(START_BUCKET + 60)}, START_BUCKET + 60),
    ],
    ids=["a rejected message fills it", "no message is named", "tracking has not come there", "it was pruned"],
)
def test_no_hole_is_found_where_tracking_may_have_seen_it(changed: dict[str, Any], pruned_before: int | None) -> None:
    arguments = {"histogram": HOLED, "base": IN_THE_HOLE, "tracking": effective(100)} | changed
    decision = decide(**arguments, pruned_before=pruned_before)
    assert (decision.reason, decision.complete_from) == (Reason.ADVANCED, LONG_AGO)


def test_a_message_that_became_visible_after_its_publish_time_is_a_hole_as_well() -> None:
    base = follow(effective(50.2), reading(100, 50), TOLERANCE)  # published at 50, visible at 50.5
    known = published([(second, second - 1) for second in range(100) if second != 50])
    decision = decide(known, base=base, tracking=effective(100), policy=Policy(base_slack=seconds(1)))
    assert (decision.reason, decision.complete_from) == (Reason.HELD_INCOMPLETE, at(51))
    without_slack = decide(known, base=base, tracking=effective(100))
    assert without_slack.reason is Reason.ADVANCED  # then the lower one is a redelivery, which has landed


# ----------------------------------------------------------------------------------------------------- idle


def test_the_idle_watermark_follows_the_lower_of_both_readings_less_their_slack() -> None:
    decision = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300))
    assert (decision.reason, decision.watermark) == (Reason.IDLE_ADVANCED, at(295 - 10 - 1))
    policy = Policy(base_slack=seconds(1), reading_slack=seconds(8))
    slack = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300), policy=policy)
    assert slack.watermark == at(300 - 8 - 10 - 1)


def test_silence_is_not_idle_while_base_may_hold_what_was_published_before_it() -> None:
    # A source catches up in a burst: 40 s behind at 100, 1 s behind at 101. Base holds the first of it ever since.
    caught_up = published([(80, 40), (100, 60), (101, 100)])
    base = effective(100, observed=101, newest=300, names=True)  # no backlog when it was read first
    decision = decide(caught_up, base=base, tracking=effective(300))
    assert (decision.watermark, decision.reason) == (at(60), Reason.ADVANCED)
    landed = decide(caught_up, base=effective(300), tracking=effective(300))
    assert (landed.watermark, landed.reason) == (at(300 - 10 - 1), Reason.IDLE_ADVANCED)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ({"base": effective(280, observed=300)}, Reason.ADVANCED),
        ({"tracking": effective(280, observed=300)}, Reason.HELD_TRACKING_BEHIND),
        ({"base": effective(260, observed=262), "tracking": effective(280, observed=300)}, Reason.ADVANCED),
    ],
    ids=["base", "tracking", "tracking, ahead of an older reading of base"],
)
def test_a_backlog_on_either_subscription_is_not_idle(readings: dict[str, Any], reason: Reason) -> None:
    decision = decide(EVERY_SECOND, **({"base": effective(300), "tracking": effective(300)} | readings))
    assert decision.reason is reason
    assert flat(decision).recent_lag is None
