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
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
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


def test_the_band_reaches_down_to_what_base_has_not_acknowledged() -> None:
    decision = decide(EVERY_SECOND, base=effective(50, observed=100), tracking=effective(100))
    assert decision.watermark == at(49)
    assert (flat(decision).band_start, flat(decision).band_end, flat(decision).anchor) == (at(50), at(100), at(89))


def test_the_band_reaches_back_over_a_silence_to_the_anchor() -> None:
    histogram = published([(10, 3), (40, 2), (95, 90), (99, 94)])
    decision = decide(histogram, base=effective(100), tracking=effective(100))
    assert (decision.watermark, flat(decision).band_start, flat(decision).anchor) == (at(2), at(40), at(40))


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


def test_a_rejected_message_is_no_anchor() -> None:
    histogram = published([(40, 2), (95, 90)], rejected=[60, 88, 96])
    decision = decide(histogram, base=effective(100), tracking=effective(100))
    assert (flat(decision).anchor, decision.watermark) == (at(40), at(2))


def test_without_the_anchor_only_the_band_is_looked_at() -> None:
    histogram = published([(40, 2), (95, 90), (99, 94)])
    decision = decide(histogram, base=effective(100), tracking=effective(100), rules=RULES_WITHOUT_ANCHOR)
    assert (decision.watermark, flat(decision).band_start) == (at(90), at(90))


def test_a_wider_band_holds_the_watermark_back_further() -> None:
    wide = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=Policy(band=seconds(30)))
    assert (wide.watermark, flat(wide).band_start) == (at(68), at(69))


def test_messages_published_after_tracking_s_reading_are_not_in_the_band() -> None:
    histogram = EVERY_SECOND + published([(103, -500)])
    assert decide(histogram, base=effective(100), tracking=effective(100)).watermark == at(88)


def test_a_band_of_no_width_needs_the_anchor_still() -> None:
    policy = Policy(band=seconds(0))
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), policy=policy)
    assert (decision.watermark, flat(decision).anchor) == (at(98), at(99))


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
    assert flat(decision).anchor == at(20)
    assert (decision.reason, decision.pin and decision.pin.published_from) == (Reason.UNCHANGED, at(20))


def test_an_operator_s_release_is_never_taken_back() -> None:
    released = replace(standing_at(5000), reason=Reason.RELEASED)
    decision = decide(EVERY_SECOND, base=effective(100), tracking=effective(100), previous=released)
    assert (decision.reason, decision.watermark) == (Reason.UNCHANGED, at(5000))


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
            .startswith(f"{reason}: watermark 2026-11-21T05:20:49Z (51s behind when decided); ")
        )
        assert replace(bare, reason=reason).sentence().startswith(f"{reason}: no watermark yet; ")
    assert len({replace(full, reason=reason).sentence().partition(";")[2] for reason in Reason}) == len(Reason)


def test_the_reasons_that_wait_for_something_else_are_the_holds() -> None:
    assert {reason for reason in Reason if reason.is_hold} == {
        Reason.HELD_TRACKING_BEHIND,
        Reason.HELD_INCOMPLETE,
        Reason.HELD_NO_DATA,
        Reason.HELD_STALE_READING,
        Reason.HELD_CLOCK_SKEW,
        Reason.HELD_SEEK,
    }
