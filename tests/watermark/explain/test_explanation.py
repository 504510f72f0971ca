"""The explanation of a decision: every way in which a watermark can stand, from small logs by hand. What it says would
move the watermark is done, on many random logs and on some by hand, and it moves."""

import re
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

import pytest

from tests.watermark.builders import START_BUCKET, at, flat, published, reading, seconds
from tests.watermark.explain import explained
from tests.watermark.explain.explained import EVERY_SECOND, SITUATIONS
from tests.watermark.fold import Log
from tidemark.pipeline.clock import iso
from tidemark.pipeline.settings_sections import WatermarkSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.explain.explanation import RULES, TRIED, Explanation, RuleOutcome, explain
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Lost


def text_of(explanation: Explanation, rule: str) -> str:
    (text,) = [condition.text for condition in explanation.conditions if condition.rule == rule]
    return text


def changes(explanation: Explanation) -> dict[str, float | None]:
    """What each alternative would have made of the watermark, in seconds further."""
    return {f"{other.setting} = {other.value}": other.further_seconds for other in explanation.alternatives}


# ------------------------------------------------------------------------------------------- of every decision


def test_there_is_a_situation_for_every_reason() -> None:
    assert {build().explain().decision.reason for build in SITUATIONS.values()} == set(Reason)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_decision_is_explained_by_each_rule_in_order_and_by_what_would_change_it(name: str) -> None:
    explanation = SITUATIONS[name]().explain()
    decision, found = explanation.decision, [condition.outcome for condition in explanation.conditions]
    assert [condition.rule for condition in explanation.conditions] == list(RULES)
    if RuleOutcome.HELD in found:
        assert set(found[found.index(RuleOutcome.HELD) + 1 :]) <= {RuleOutcome.NOT_REACHED}
    moved = decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED, Reason.RELEASED)
    assert (found[-1] is RuleOutcome.DECIDED) == (RuleOutcome.HELD not in found) == moved
    assert explanation.moves
    for sentence in explanation.sentences():
        assert re.fullmatch(r"[A-Z](?!.*(  |None|unknown moment)).*\.", sentence)
    for other in explanation.alternatives:
        assert other.setting in TRIED
        assert other.cost
        assert (other.watermark, other.reason) != (decision.watermark, decision.reason)
        if other.further_seconds is not None and decision.watermark is not None:
            assert other.watermark == decision.watermark + timedelta(seconds=other.further_seconds)


def test_a_decision_that_does_not_follow_from_the_log_is_explained_by_itself() -> None:
    log = explained.steady()
    elsewhere = replace(log.before, histogram=EVERY_SECOND.pruned(START_BUCKET + 95))
    assert explain(log.state.record, elsewhere) == Explanation(log.state.record.decision)


# ------------------------------------------------------------------------------------------- what it rests on


def test_a_rule_that_holds_names_the_numbers_that_made_it_hold() -> None:
    behind = text_of(explained.tracking_behind().explain(), "tracking")
    assert "a backlog of 40s, more than 15s, and" in behind
    assert "5s ahead of base, less than the band of 10s" in behind
    assert "7m before the decision: more than 5m" in text_of(explained.stale().explain(), "readings")
    assert text_of(explained.never_read().explain(), "readings") == "Base's backlog was never read."
    sought = text_of(explained.sought().explain(), "seek")
    assert sought.startswith("Base was sought back")
    assert all(iso(at(moment)) in sought for moment in (95.25, 20.25)), sought
    incomplete = text_of(explained.incomplete().explain(), "completeness")
    assert (iso(at(70)) in incomplete, "hole" in incomplete) == (True, False), incomplete
    assert "never seen: a hole" in text_of(explained.hole().explain(), "completeness")


def test_a_lost_entry_is_distinguished_from_a_hole() -> None:
    log = explained.steady()
    log.write(Lost("for the test"))
    log.publish(published([(109.2, 108), (109.7, 108)]))
    log.tick(109.5, base=109.1)
    assert text_of(log.explain(), "completeness").startswith("An entry of the log was lost, or")
    lands, release = log.explain().moves
    assert "(tracking knows of at most 2 messages)" in lands
    assert release.startswith("Without pubsub.attach, you can release the backlog instead")


# ---------------------------------------------------------------------------------- which setting would have


def test_a_smaller_band_takes_the_slack_with_it_that_follows_it() -> None:
    """On the service base_slack is the band unless it is set."""
    log = Log(Policy(base_slack=seconds(10)), messages=EVERY_SECOND)
    log.tick(100, base=60.25)
    assert changes(log.explain())["band = 5s"] == 5
    for policy in (Policy(base_slack=seconds(9)), Policy(base_slack=seconds(10), reading_slack=seconds(10))):
        log = Log(policy, messages=EVERY_SECOND)
        log.tick(100, base=60.25)
        assert "band = 5s" not in changes(log.explain())


def test_a_reading_is_explained_by_whether_it_names_a_message() -> None:
    log = Log(messages=EVERY_SECOND)
    log.read(100, reading(100, 60, names=False), reading(100))
    said = text_of(log.explain(), "readings")
    assert f"Base has acknowledged everything that was published before {iso(at(60))}" in said
    log = Log(messages=EVERY_SECOND)
    log.read(100, reading(100, 99, names=False), reading(100))
    said = text_of(log.explain(), "readings")
    assert said == (
        f"Base has acknowledged everything that was published before {iso(at(99))}. "
        f"Tracking had no backlog at {iso(at(100))}."
    )
    log = Log(messages=EVERY_SECOND)
    log.read(100, reading(100), reading(100, 95))
    assert "Tracking's backlog began at" in text_of(log.explain(), "readings")
    assert "no backlog" not in text_of(log.explain(), "tracking")


TIME = r"(\d{4}-[\dT:.-]+Z)"
LANDED, LATER, NEWER = (
    re.compile(text + TIME)
    for text in ("everything that was published before ", "a message that was published at ", "an event time after ")
)


SEEDS = range(16)


@dataclass
class World:
    """A log, the moment, and the publish times that base has not landed."""

    log: Log
    now: float
    outstanding: list[float]

    def tick(self) -> Decision:
        """All is tracked at once; base is read as it is."""
        return self.log.tick(self.now, base=min(self.outstanding, default=None))

    def explain(self) -> Explanation:
        return self.log.explain()


def a_policy(random: Random) -> Policy:
    return Policy(
        rule=random.choice(["band", "frontier"]),
        band=seconds(random.choice([1, 3.5, 10])),
        idle=random.choice(["advance", "hold"]),
        quantile=random.choice([0, 0, 0.3]),
        reading_slack=seconds(random.choice([0, 1])),
        base_slack=seconds(random.choice([0, 3, 10])),
    )


def play(seed: int) -> list[World]:
    """A world after each of some ticks; bursts, pauses, late messages, and a base that is behind by any amount."""
    random = Random(seed)
    log, now, outstanding = Log(a_policy(random)), 0.0, list[float]()
    lag, noise = random.choice([0, 30]), random.choice([0, 5, 40])
    worlds = []
    for _ in range(10):
        since, now = now, now + random.choice([1, 10, 10, 60, 200])
        times = [random.uniform(since, now) for _ in range(random.choice([0, 1, 5, 30]))]
        log.publish(published((time, time - lag - random.uniform(0, noise)) for time in times))
        stays = random.choice([0, 0, 0, 0.9, 1])
        outstanding = [time for time in [*outstanding, *times] if random.random() < stays]
        World(log, now, outstanding).tick()
        worlds.append(World(copy(log), now, outstanding))
    return worlds


def told(pattern: re.Pattern[str], said: str) -> float | None:
    found = pattern.search(said)
    return None if found is None else (datetime.fromisoformat(found.group(1)) - at(0)).total_seconds()


def make_happen(world: World, said: str) -> Decision:
    """Base lands, and tracking reads on, just as far as is said."""
    policy, now, outstanding = world.log.policy, world.now + 0.001, world.outstanding
    landed, later, newer = (told(pattern, said) for pattern in (LANDED, LATER, NEWER))
    if landed is not None:
        outstanding, now = [time for time in outstanding if time >= landed], max(now, landed)
    reach = (policy.band + policy.reading_slack).total_seconds() + 0.001
    if later is not None:
        now = max(now, later + reach)
        world.log.publish(published([(later, now)]))
    if newer is not None:
        world.log.publish(published([(world.now, newer + 0.001)]))
        now = max(now, world.now + reach)
    return World(world.log, now, outstanding).tick()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_move_that_the_explanation_promises_moves_the_watermark(seed: int) -> None:
    for world in play(seed):
        explanation = world.explain()
        said, watermark = explanation.moves[0], explanation.decision.watermark
        if not said.startswith(("The watermark moves when base", "The watermark moves when tracking")):
            continue
        assert watermark is not None
        decision = make_happen(World(copy(world.log), world.now, world.outstanding), said)
        moved = decision.watermark is not None and decision.watermark > watermark
        is_silent = flat(decision).recent_lag is not None  # meanwhile; then the clock decides
        assert moved or is_silent, f"{said} And then: {decision.sentence()}"


@pytest.mark.parametrize("seed", SEEDS)
def test_each_setting_that_the_explanation_names_can_be_written_and_has_the_stated_effect(seed: int) -> None:
    for world in play(seed)[::3]:
        decided, before = world.log.state.record, world.log.before
        for other in world.explain().alternatives or []:
            settings = WatermarkSettings.model_validate({other.setting: other.value})
            policy = replace(decided.policy, **{other.setting: getattr(settings, other.setting)})
            if other.setting == "band" and decided.policy.base_slack == decided.policy.band > timedelta(0):
                continue  # the slack follows the band: it has a test of its own
            decision = before.decide(decided.base, decided.tracking, policy, decided.decision.at).decision
            assert (decision.watermark, decision.reason) == (other.watermark, other.reason)


# --------------------------------------------------------------------------------- of each kind, by hand


def test_the_release_that_is_proposed_moves_the_watermark() -> None:
    """For each watermark that base holds, take the command at its word."""
    proposing = ("straggler", "incomplete", "incomplete_on_the_service", "hole", "on_the_service")
    for name, build in SITUATIONS.items():
        log = build()
        said = " ".join(log.explain().moves)
        assert ("--before" in said) == (name in proposing), name
        if name not in proposing:
            continue
        proposed = datetime.fromisoformat(said.split("--before ")[1].split("`")[0])
        watermark, decided = log.state.watermark, log.state.record
        assert decided.base.oldest_unacked < proposed, "`tidemark release` refuses what base has passed"
        log.release((proposed - at(0)).total_seconds())
        decision = log.read(101, decided.base, decided.tracking)
        assert decision.reason is Reason.RELEASED, name
        assert decision.watermark is not None
        assert watermark is None or decision.watermark > watermark


def test_a_watermark_that_was_let_go_and_is_pinned_again_is_not_promised_another_release() -> None:
    for build in (explained.released, explained.pinned_after_a_release):
        said = build().explain().moves
        assert "--before" not in " ".join(said)
        assert "Until base has acknowledged the released messages" in said[1]
        assert "another `tidemark release`" in said[1]
    log = explained.straggler()
    log.release(105)
    log.tick(110, base=50.25)
    assert "An operator released it. It is the anchor" in str(log.explain().pin), "base has not acknowledged it"


def test_the_frontier_moves_again_at_the_moment_that_the_explanation_names() -> None:
    log = explained.frontier_after_a_seek()
    (said,) = log.explain().moves
    until = datetime.fromisoformat(said.split("read beyond ")[1].split("Z")[0] + "Z")
    reached = (until - at(0)).total_seconds()
    assert log.tick(116, tracking=reached - 1).reason is Reason.HELD_NO_DATA
    assert log.tick(117, tracking=reached + 0.001).reason is not Reason.HELD_NO_DATA


def test_with_a_quantile_the_whole_second_of_base_holds_the_frontier() -> None:
    log = Log(Policy(rule="frontier", quantile=0.3))
    log.publish(published([*((second, second - 1) for second in range(90)), (50, 20)]))
    log.tick(100, base=50.7)
    assert f"when base has acknowledged everything that was published before {iso(at(51))} " in log.explain().moves[0]


def test_the_clock_that_an_idle_watermark_waits_for_is_named() -> None:
    log = explained.idle_and_unchanged()
    (said,) = log.explain().moves
    assert iso(at(403)) in said  # it stands at 93; the band is 10 s, and the lag 5 m
    assert log.tick(403).reason is Reason.UNCHANGED
    assert log.tick(403.5).reason is Reason.IDLE_ADVANCED


def test_where_everything_is_rejected_the_explanation_leads_to_quarantine() -> None:
    log = Log(messages=published([], rejected=range(20, 50)))
    assert log.tick(60).reason is Reason.HELD_NO_DATA
    rejected, until = log.explain().moves
    assert rejected.startswith("Messages were rejected: tracking knows of 30 messages without a valid event time")
    assert "`tidemark quarantine` says why" in rejected
    assert until.startswith("The watermark is held until")
    assert "`tidemark quarantine`" in log.tick(61).sentence()


@pytest.mark.parametrize("policy", [Policy(), Policy(idle="hold")])
def test_a_silence_of_valid_messages_in_which_others_are_rejected_leads_to_quarantine(policy: Policy) -> None:
    log = explained.idle(policy)
    assert not any("quarantine" in said for said in log.explain().moves)
    log.publish(published([], rejected=[200, 280]))
    assert log.tick(300).reason in (Reason.IDLE_ADVANCED, Reason.IDLE_HELD)
    assert text_of(log.explain(), "silence").startswith("The newest valid message was published at")
    rejected, _ = log.explain().moves
    assert rejected.startswith("Messages were rejected since the last valid one: tracking knows of 2 messages")
    assert "(with pubsub.attach, `tidemark try --sample 20`)" in rejected
