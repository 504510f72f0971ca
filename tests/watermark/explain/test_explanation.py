"""The explanation of a decision: every way in which a watermark can stand, explained from a small log by hand."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.watermark.builders import START_BUCKET, at, published, reading, seconds
from tests.watermark.explain import explained
from tests.watermark.explain.explained import EVERY_SECOND, SITUATIONS
from tests.watermark.fold import Log
from tidemark.pipeline.clock import iso
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.explain.explanation import RULES, TRIED, Explanation, RuleOutcome, explain
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Lost


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


def test_there_is_a_situation_for_every_reason() -> None:
    assert {build().explain().decision.reason for build in SITUATIONS.values()} == set(Reason)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_decision_is_explained_by_each_rule_in_order_in_sentences_and_by_what_would_change_it(name: str) -> None:
    explanation = SITUATIONS[name]().explain()
    decision, found = explanation.decision, [condition.outcome for condition in explanation.conditions]
    assert [condition.rule for condition in explanation.conditions] == list(RULES)
    if RuleOutcome.HELD in found:
        assert set(found[found.index(RuleOutcome.HELD) + 1 :]) <= {RuleOutcome.NOT_REACHED}
    assert (found[-1] is RuleOutcome.DECIDED) == (RuleOutcome.HELD not in found) == decision.reason.is_move
    assert explanation.moves
    for sentence in explanation.sentences():
        assert re.fullmatch(r"[A-Z](?!.*(  |None|unknown moment)).*\.", sentence)
    assert explanation.alternatives is not None
    for other in explanation.alternatives:
        assert other.setting in TRIED
        assert other.cost
        assert (other.watermark, other.reason) != (decision.watermark, decision.reason)
        if other.further is not None and decision.watermark is not None:
            assert other.watermark == decision.watermark + other.further


def test_a_decision_that_does_not_follow_from_the_log_is_explained_by_itself() -> None:
    log = explained.steady()
    assert log.state.record is not None
    elsewhere = replace(log.before, histogram=EVERY_SECOND.pruned(START_BUCKET + 95))
    assert explain(log.state.record, elsewhere) == Explanation(log.state.record.decision)


# ------------------------------------------------------------------------------------------- what it rests on


def test_a_pin_is_named_with_its_second_and_what_holds_it() -> None:
    straggler = explained.straggler().explain()
    assert straggler.pin is not None
    cell = f"published in the second from {iso(at(50))}, happened in the second from {iso(at(49))}, at most 1 message."
    assert cell in straggler.pin
    assert f"the least event time, {iso(at(49.25))}" in straggler.pin
    assert "may still be outstanding" in straggler.pin
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


def test_the_explanation_counts_messages_since_base_s_oldest_and_since_the_pin() -> None:
    straggler = explained.straggler().explain()
    assert (straggler.since_base, straggler.since_pin) == (50, 50)  # 50.25 to 99.25
    steady = explained.steady().explain()
    assert (steady.since_base, steady.since_pin) == (2, 12)
    assert steady.ahead is not None
    assert "At most 2 messages that tracking has read may be outstanding on base" in steady.ahead
    assert "since the pin's second at most 12 messages came in" in steady.ahead
    assert "Base has acknowledged everything that tracking has read" in (explained.idle().explain().ahead or "")
    straggling = straggler.moves[0]
    assert "tracking knows of at most 1 message" in straggling


def test_a_rule_that_holds_names_the_numbers_that_made_it_hold() -> None:
    behind = text_of(explained.tracking_behind().explain(), "tracking")
    assert "a backlog of 40s, more than 10s, and" in behind
    assert "5s ahead of base: less than the band of 10s" in behind
    assert "7m before, which is more than 5m" in text_of(explained.stale().explain(), "readings")
    assert text_of(explained.never_read().explain(), "readings") == "Base's backlog was never read."
    sought = text_of(explained.sought().explain(), "seek")
    assert sought.startswith("Base was sought back")
    assert iso(at(95.25)) in sought
    assert iso(at(20.25)) in sought
    incomplete = text_of(explained.incomplete().explain(), "completeness")
    assert iso(at(70)) in incomplete
    assert "hole" not in incomplete
    assert "never seen: a hole" in text_of(explained.hole().explain(), "completeness")


def test_a_hole_is_explained_by_the_message_that_the_rule_looked_at() -> None:
    """A lower reading that is no seek does not become the effective one."""
    log = explained.hole()
    log.tick(101, base=45.5)
    assert f"published at {iso(at(50.5))} that tracking has never seen" in text_of(log.explain(), "completeness")


def test_a_lost_entry_is_distinguished_from_a_hole() -> None:
    log = explained.steady()
    log.write(Lost("for the test"))
    log.tick(110, base=98.25)
    assert text_of(log.explain(), "completeness").startswith("An entry of the tracking log was lost.")


def test_slack_is_named_where_it_is_taken_off() -> None:
    explanation = explained.on_the_service().explain()
    assert "less 10s of slack" in text_of(explanation, "completeness")
    assert explanation.pin is not None
    assert "by less than the slack" in explanation.pin


def test_a_quantile_is_named_where_it_passes_something_over() -> None:
    log = Log(Policy(quantile=0.01))
    log.publish(EVERY_SECOND)
    log.tick(100)
    assert "least event time (except 0.01 of each publish second: quantile)" in (log.explain().pin or "")


# ---------------------------------------------------------------------------------- which setting would have


def test_a_smaller_band_that_does_no_more_than_a_wider_one_is_not_listed() -> None:
    log = Log()
    log.publish(published([(0, 0), (50, 40), (70, 69)]))
    log.tick(79)  # published at 50 is the anchor, until the band is at most 9 s
    assert [name for name in changes(log.explain()) if name.startswith("band")] == ["band = 5s"]


def test_a_smaller_band_takes_the_slack_with_it_that_follows_it() -> None:
    """On the service base_slack is the band unless it is set."""
    log = Log(Policy(base_slack=seconds(10)))
    log.publish(EVERY_SECOND)
    log.tick(100, base=60.25)
    assert changes(log.explain())["band = 5s"] == 5
    log = Log(Policy(base_slack=seconds(9)))
    log.publish(EVERY_SECOND)
    log.tick(100, base=60.25)
    assert "band = 5s" not in changes(log.explain())


def test_an_alternative_is_what_the_estimator_gives_with_that_setting() -> None:
    log = explained.steady()
    alternatives = {other.value: other for other in log.explain().alternatives or []}
    other = Log(replace(log.policy, band=timedelta(seconds=5)))
    other.state = log.before
    assert other.tick(100, base=98.25, tracking=99.25).watermark == alternatives["5s"].watermark


def test_a_bound_that_names_no_message_is_explained_as_such() -> None:
    log = Log()
    log.publish(EVERY_SECOND)
    log.read(100, reading(100, 60, names=False), reading(100))
    assert f"Base has acknowledged everything that was published before {iso(at(60))}" in text_of(
        log.explain(), "readings"
    )
