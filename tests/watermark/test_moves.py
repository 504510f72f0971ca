"""What an explanation says would move the watermark is done, on many random logs, and it moves."""

import re
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

import pytest

from pipeline.settings_sections import WatermarkSettings
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.explanation import Explanation
from pipeline.watermark.policy import Policy
from tests.watermark.builders import at, published, seconds
from tests.watermark.fold import Log

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
def test_what_is_said_to_move_the_watermark_moves_it(seed: int) -> None:
    for world in play(seed):
        explanation = world.explain()
        said, watermark = explanation.moves[0], explanation.decision.watermark
        if not said.startswith(("It moves when base", "It moves when tracking")):
            continue
        assert watermark is not None
        decision = make_happen(World(copy(world.log), world.now, world.outstanding), said)
        moved = decision.watermark is not None and decision.watermark > watermark
        is_silent = decision.recent_lag is not None  # meanwhile; then the clock decides
        assert moved or is_silent, f"{said} And then: {decision.sentence()}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_setting_that_is_named_is_one_that_can_be_written_and_does_what_is_said(seed: int) -> None:
    for world in play(seed)[::3]:
        decided, before = world.log.standing.decided, world.log.before
        assert decided is not None
        for other in world.explain().alternatives or []:
            settings = WatermarkSettings.model_validate({other.setting: other.value})
            value = getattr(settings, other.setting)
            policy = replace(decided.policy, **{other.setting: value})
            if other.setting == "band" and decided.policy.base_slack == decided.policy.band > timedelta(0):
                continue  # the slack follows the band: it has a test of its own
            decision = before.decide(decided.base, decided.tracking, policy, decided.decision.at).decision
            assert (decision.watermark, decision.reason) == (other.watermark, other.reason)


def test_the_random_logs_meet_every_kind_of_sentence() -> None:
    said = [world.explain() for seed in SEEDS for world in play(seed)]
    for pattern in (LANDED, LATER, NEWER):
        assert any(told(pattern, each.moves[0]) is not None for each in said)
    assert {each.decision.reason for each in said} >= {Reason.ADVANCED, Reason.PINNED_BY_BACKLOG, Reason.UNCHANGED}
