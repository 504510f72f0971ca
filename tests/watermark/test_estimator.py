"""The estimator: each rule by an example.

Seconds from a fixed start throughout; the band is 10 s unless an example says otherwise.
"""

from dataclasses import replace

from tests.watermark.builders import (
    EVERY_SECOND,
    at,
    decide,
    effective,
    flat,
    published,
    seconds,
    standing_at,
)
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy

# ------------------------------------------------------------------------------------ the band and its anchor


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
