"""What an explanation says would move the watermark is done, on many random logs and on some by hand, and it moves."""

import re
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

import pytest

from tests.watermark.builders import at, flat, published, seconds
from tests.watermark.explain import explained
from tests.watermark.explain.explained import EVERY_SECOND, SITUATIONS
from tests.watermark.fold import Log
from tidemark.pipeline.clock import iso
from tidemark.pipeline.settings_sections import WatermarkSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.explain.explanation import Explanation
from tidemark.pipeline.watermark.policy import Policy

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
        world = World(log, now, outstanding)
        world.tick()
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
        if not said.startswith(("It moves when base", "It moves when tracking")):
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
        assert decided is not None
        for other in world.explain().alternatives or []:
            settings = WatermarkSettings.model_validate({other.setting: other.value})
            value = getattr(settings, other.setting)
            policy = replace(decided.policy, **{other.setting: value})
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
        assert decided is not None
        assert decided.base is not None
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
        assert "further `tidemark release`" in said[1]


def test_messages_that_tracking_has_seen_beyond_its_reading_are_waited_for_as_well() -> None:
    log = Log()
    log.publish(EVERY_SECOND)
    log.tick(100)
    log.publish(published([(101, 60), (103, 50)]))
    log.tick(105, tracking=102)
    assert f"published at {iso(at(104))} or later" in log.explain().moves[0]


def test_the_frontier_moves_again_at_the_moment_that_the_explanation_names() -> None:
    log = explained.frontier_after_a_seek()
    (said,) = log.explain().moves
    until = datetime.fromisoformat(said.split("read beyond ")[1].split("Z")[0] + "Z")
    reached = (until - at(0)).total_seconds()
    assert log.tick(116, tracking=reached - 1).reason is Reason.HELD_NO_DATA
    assert log.tick(117, tracking=reached + 0.001).reason is not Reason.HELD_NO_DATA


def test_the_clock_that_an_idle_watermark_waits_for_is_named() -> None:
    log = explained.idle_and_unchanged()
    (said,) = log.explain().moves
    assert iso(at(403)) in said  # it stands at 93; the band is 10 s, and the lag 5 m
    assert log.tick(403).reason is Reason.UNCHANGED
    assert log.tick(403.5).reason is Reason.IDLE_ADVANCED


def test_where_everything_is_rejected_the_explanation_leads_to_quarantine() -> None:
    log = Log()
    log.publish(published([], rejected=range(20, 50)))
    assert log.tick(60).reason is Reason.HELD_NO_DATA
    rejected, until = log.explain().moves
    assert rejected.startswith("What was published is rejected: tracking knows of 30 messages without an event time")
    assert "`tidemark quarantine` says why" in rejected
    assert until.startswith("It is held until")
    assert "`tidemark quarantine`" in log.tick(61).sentence()


@pytest.mark.parametrize("policy", [Policy(), Policy(idle="hold")])
def test_a_silence_of_valid_messages_in_which_others_are_rejected_leads_to_quarantine(policy: Policy) -> None:
    log = explained.idle(policy)
    assert not any("quarantine" in said for said in log.explain().moves)
    log.publish(published([], rejected=[200, 280]))
    assert log.tick(300).reason in (Reason.IDLE_ADVANCED, Reason.IDLE_HELD)
    rejected, _ = log.explain().moves
    assert rejected.startswith("What was published since is rejected: tracking knows of 2 messages")
