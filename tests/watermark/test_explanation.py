"""The explanation of a decision: every way in which a watermark can stand, explained from a small log by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pipeline.clock import iso
from pipeline.watermark.alternatives import TRIED
from pipeline.watermark.conditions import RULES, Outcome
from pipeline.watermark.decision import Reason
from pipeline.watermark.explanation import Explanation, explain
from pipeline.watermark.policy import Policy
from pipeline.watermark.standing import Lost
from tests.watermark import explained
from tests.watermark.builders import at, published, reading, seconds
from tests.watermark.explained import EVERY_SECOND, SITUATIONS
from tests.watermark.fold import Log

REASONS = {
    "steady": Reason.ADVANCED,
    "straggler": Reason.PINNED_BY_BACKLOG,
    "tracking_behind": Reason.HELD_TRACKING_BEHIND,
    "idle": Reason.IDLE_ADVANCED,
    "incomplete": Reason.HELD_INCOMPLETE,
    "hole": Reason.HELD_INCOMPLETE,
    "no_data": Reason.HELD_NO_DATA,
    "stale": Reason.HELD_STALE_READING,
    "never_read": Reason.HELD_STALE_READING,
    "sought": Reason.HELD_SEEK,
    "released": Reason.RELEASED,
    "pinned_after_a_release": Reason.PINNED_BY_BACKLOG,
    "frontier": Reason.ADVANCED,
    "unchanged": Reason.UNCHANGED,
    "idle_and_unchanged": Reason.UNCHANGED,
    "on_the_service": Reason.PINNED_BY_BACKLOG,
}
every_situation = pytest.mark.parametrize("name", SITUATIONS)


def outcomes(explanation: Explanation) -> dict[str, Outcome]:
    return {condition.rule: condition.outcome for condition in explanation.conditions}


def text_of(explanation: Explanation, rule: str) -> str:
    (text,) = [condition.text for condition in explanation.conditions if condition.rule == rule]
    return text


def changes(explanation: Explanation) -> dict[str, float | None]:
    """What each alternative would have made of the watermark, in seconds further."""
    assert explanation.alternatives is not None
    return {
        f"{other.setting} = {other.value}": None if other.further is None else other.further.total_seconds()
        for other in explanation.alternatives
    }


# ------------------------------------------------------------------------------------------- of every decision


@every_situation
def test_each_situation_is_the_one_it_is_called(name: str) -> None:
    assert SITUATIONS[name]().explain().decision.reason is REASONS[name]


@every_situation
def test_every_rule_is_told_once_in_order_and_nothing_is_looked_at_after_one_that_held(name: str) -> None:
    explanation = SITUATIONS[name]().explain()
    assert [condition.rule for condition in explanation.conditions] == list(RULES)
    found = [condition.outcome for condition in explanation.conditions]
    if Outcome.HELD in found:
        after = found[found.index(Outcome.HELD) + 1 :]
        assert set(after) <= {Outcome.NOT_REACHED}
    moved = explanation.decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED, Reason.RELEASED)
    assert (outcomes(explanation)["candidate"] is Outcome.DECIDED) == moved
    assert (Outcome.HELD in found) == (not moved)


@every_situation
def test_it_is_in_sentences_and_says_what_would_move_the_watermark(name: str) -> None:
    explanation = SITUATIONS[name]().explain()
    assert explanation.moves
    for sentence in explanation.sentences():
        assert sentence.endswith(".")
        assert sentence[0].isupper()
        assert "  " not in sentence
        assert "None" not in sentence
        assert "unknown moment" not in sentence


@every_situation
def test_alternatives_differ_from_what_was_decided_and_say_what_they_cost(name: str) -> None:
    log = SITUATIONS[name]()
    explanation = log.explain()
    assert explanation.alternatives is not None
    decision = explanation.decision
    for other in explanation.alternatives:
        assert other.setting in TRIED
        assert other.cost
        assert (other.watermark, other.reason) != (decision.watermark, decision.reason)
        if other.further is not None and decision.watermark is not None:
            assert other.watermark == decision.watermark + other.further


@every_situation
def test_without_the_log_before_it_a_decision_is_explained_by_itself(name: str) -> None:
    log = SITUATIONS[name]()
    assert log.standing.decided is not None
    alone, whole = explain(log.standing.decided, None), log.explain()
    assert alone.alternatives is None
    assert (alone.since_base, alone.since_pin) == (None, None)
    assert outcomes(alone) == outcomes(whole)
    assert alone.moves == whole.moves


# ------------------------------------------------------------------------------------------- what it rests on


def test_a_pin_is_named_with_its_second_and_what_holds_it() -> None:
    straggler = explained.straggler().explain()
    assert straggler.pin is not None
    assert f"{iso(at(49.25))}, of the message published within the second from {iso(at(50))}" in straggler.pin
    assert "may still have to land" in straggler.pin
    steady = explained.steady().explain()
    assert steady.pin is not None
    assert "It is the anchor" in steady.pin
    unchanged = explained.unchanged().explain()
    assert unchanged.pin is not None
    assert "within the band" in unchanged.pin
    frontier = explained.frontier().explain()
    assert frontier.pin is not None
    assert f"the frontier, {iso(at(88.25))}" in frontier.pin
    assert explained.idle().explain().pin is None


def test_it_counts_what_was_published_since_base_s_oldest_and_since_the_pin() -> None:
    straggler = explained.straggler().explain()
    assert (straggler.since_base, straggler.since_pin) == (50, 50)  # 50.25 to 99.25
    steady = explained.steady().explain()
    assert (steady.since_base, steady.since_pin) == (2, 12)
    assert steady.ahead is not None
    assert "at most 2 were published" in steady.ahead
    assert "at most 12 from the pin's second on" in steady.ahead


def test_what_was_pruned_is_not_counted_as_nothing() -> None:
    """The seek goes back below what is kept: how many messages it replays is not known any more."""
    assert explained.sought().explain().since_base is None


def test_a_held_rule_tells_the_numbers_that_held() -> None:
    behind = text_of(explained.tracking_behind().explain(), "tracking")
    assert "a backlog of 40s, more than 10s (near_real_time)" in behind
    assert "5s ahead of base: less than the band of 10s" in behind
    assert "7m before, which is more than 5m (max_reading_age)" in text_of(explained.stale().explain(), "readings")
    assert text_of(explained.never_read().explain(), "readings") == "Base's backlog was never read."
    sought = text_of(explained.sought().explain(), "seek")
    assert sought.startswith("Base was sought back")
    assert iso(at(95.25)) in sought
    assert iso(at(20.25)) in sought
    incomplete = text_of(explained.incomplete().explain(), "completeness")
    assert iso(at(70)) in incomplete
    assert "hole" not in incomplete
    assert "never seen: a hole" in text_of(explained.hole().explain(), "completeness")


def test_tracking_behind_base_is_said_to_be_behind() -> None:
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(80, base=79, tracking=70)
    log.tick(130, base=85.25, tracking=75.25)
    assert "10s behind base" in text_of(log.explain(), "tracking")


def test_a_lost_entry_is_told_from_a_hole() -> None:
    log = explained.steady()
    log.write(Lost("for the test"))
    log.tick(110, base=98.25)
    assert text_of(log.explain(), "completeness").startswith("An entry of the tracking log was lost.")


def test_a_release_in_force_is_told_and_one_that_base_has_passed_is_not() -> None:
    assert "was let go by an operator" in text_of(explained.released().explain(), "completeness")
    log = explained.released()
    log.tick(130, base=95.25)
    assert "let go" not in " ".join(log.explain().sentences())


def test_slack_is_named_where_it_is_taken_off() -> None:
    explanation = explained.on_the_service().explain()
    assert "less 10s of slack" in text_of(explanation, "completeness")
    assert explanation.pin is not None
    assert "base_slack" in explanation.pin


# ------------------------------------------------------------------------------------------ what would move it


def test_the_release_that_is_proposed_moves_the_watermark() -> None:
    """For each watermark that base holds, take the command at its word."""
    for build in (explained.straggler, explained.incomplete, explained.hole, explained.on_the_service):
        log = build()
        said = " ".join(log.explain().moves)
        proposed = said.split("--before ")[1].split("`")[0]
        before = next(second for second in range(200) if iso(at(second)) == proposed)
        watermark = log.standing.watermark
        log.release(before)
        decision = log.tick(101, base=50.25)
        assert decision.reason is Reason.RELEASED, build.__name__
        assert decision.watermark is not None
        assert watermark is None or decision.watermark > watermark


def test_a_watermark_that_was_let_go_and_is_pinned_again_names_no_time() -> None:
    for build in (explained.released, explained.pinned_after_a_release):
        (said,) = build().explain().moves
        assert "further `tidemark release`" in said


def test_the_second_that_must_leave_the_band_is_the_one_that_pins() -> None:
    log = explained.unchanged()
    (said,) = log.explain().moves
    assert iso(at(102)) in said
    log.publish(published([(102, 101)]))
    assert log.tick(111.9).reason is Reason.UNCHANGED
    assert log.tick(112.1).reason is Reason.ADVANCED


def test_the_clock_that_an_idle_watermark_waits_for_is_named() -> None:
    log = explained.idle_and_unchanged()
    (said,) = log.explain().moves
    assert iso(at(309)) in said  # published 99, happens 299; the band is 10 s
    assert log.tick(309).reason is Reason.UNCHANGED
    assert log.tick(309.5).reason is Reason.IDLE_ADVANCED


# ---------------------------------------------------------------------------------- which setting would have


def test_a_smaller_band_is_offered_with_what_it_gives() -> None:
    found = changes(explained.steady().explain())
    assert found == {"band = 5s": 5.0, "band = 1s": 9.0}


def test_a_smaller_band_that_does_no_more_than_a_wider_one_is_not_listed() -> None:
    log = Log()
    log.publish(published([(0, 0), (50, 40), (70, 69)]))
    log.tick(79)  # published at 50 is the anchor, until the band is at most 9 s
    assert [name for name in changes(log.explain()) if name.startswith("band")] == ["band = 5s"]


def test_a_straggler_is_let_pass_by_no_setting() -> None:
    assert changes(explained.straggler().explain()) == {}


def test_one_broken_clock_is_passed_over_by_a_quantile_large_enough() -> None:
    log = Log()
    log.publish(published((second, second - 1) for second in range(100) for _ in range(200)))
    log.publish(published([(95.5, -4000)]))
    log.tick(100)
    found = changes(log.explain())
    assert found["quantile = 0.01"] == 4088
    assert "quantile = 0.001" not in found
    assert found["rule = frontier"] is not None  # passes it too: what is published later may not be older


def test_the_other_rule_is_offered_either_way() -> None:
    late_stream = published((second + 0.5, second - 30) for second in range(0, 100, 5))
    band = Log()
    band.publish(EVERY_SECOND + late_stream)
    band.tick(100)
    assert changes(band.explain())["rule = frontier"] == 28.25
    assert changes(explained.frontier().explain())["rule = band"] == -28.25


def test_idle_is_offered_the_other_way() -> None:
    assert changes(explained.idle().explain())["idle = hold"] == -180.75
    held = explained.idle(Policy(idle="hold"))
    assert changes(held.explain())["idle = advance"] == 180.75


def test_a_wait_that_was_too_short_is_offered_just_long_enough() -> None:
    assert changes(explained.tracking_behind().explain())["near_real_time = 40s"] == 11
    stale = explained.stale()
    (other,) = stale.explain().alternatives or []
    assert (other.setting, other.value, other.reason) == ("max_reading_age", "7m", Reason.ADVANCED)
    assert changes(explained.sought().explain())["seek_tolerance = 1m15s"] == 6


def test_slacks_are_offered_without() -> None:
    assert changes(explained.on_the_service().explain()) == {"base_slack = 0s": 10.0}
    log = Log(Policy(reading_slack=seconds(1)))
    log.publish(EVERY_SECOND)
    log.tick(100)
    assert changes(log.explain())["reading_slack = 0s"] == 1


def test_a_first_watermark_is_offered_as_one() -> None:
    alternatives = explained.no_data().explain().alternatives
    assert alternatives is not None
    assert [(other.value, other.further) for other in alternatives] == [("5s", None), ("1s", None)]


def test_an_alternative_is_what_the_estimator_gives_with_that_setting() -> None:
    log = explained.steady()
    alternatives = {other.value: other for other in log.explain().alternatives or []}
    other = Log(replace(log.policy, band=timedelta(seconds=5)))
    other.standing = log.before
    assert other.tick(100, base=98.25, tracking=99.25).watermark == alternatives["5s"].watermark


def test_a_bound_that_names_no_message_is_told_as_one() -> None:
    log = Log()
    log.publish(EVERY_SECOND)
    log.read(100, reading(100, 60, names=False), reading(100))
    assert f"Base has acknowledged everything that was published before {iso(at(60))}" in text_of(
        log.explain(), "readings"
    )
