"""What must always be true, over some hundred seeds; `make simulate SEEDS=...` plays as many as one likes."""

from collections import Counter
from dataclasses import replace

import pytest

from pipeline.watermark.decision import Reason
from tests.simulation.__main__ import counted
from tests.simulation.ages import TOO_OLD
from tests.simulation.plan import SOURCES, plan_of
from tests.simulation.simulation import Simulation

SEEDS = 400
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_every_invariant_holds_under_any_trouble(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        totals += counted(Simulation(seed).run())
    seeds = SEEDS // PARTS
    # It was put to the test: there was trouble, and while there was, the watermark moved, and was held for each reason.
    assert totals["crashes"] > seeds
    assert totals["failed ticks"] > seeds
    assert totals[Reason.ADVANCED] > seeds // 4
    assert totals[Reason.PINNED_BY_BACKLOG] > seeds // 4
    # Its clocks are wrong by too little for HELD_CLOCK_SKEW: that is tests/ticks/test_clock_skew.py.
    for reason in set(Reason) - {Reason.HELD_CLOCK_SKEW}:
        assert totals[reason], f"no decision of seeds {part}, {part + PARTS}, ... said {reason}"
    assert totals["windows"] > 2 * seeds


def test_sources_beyond_the_band_are_late_and_missed_and_counted() -> None:
    seeds = [seed for seed in range(SEEDS) if plan_of(seed).kind == "beyond the band"]
    outcomes = [Simulation(seed).run() for seed in seeds[:30]]
    assert sum(outcome.late for outcome in outcomes) > 0
    assert sum(outcome.missed for outcome in outcomes) > 0


def test_one_seed_is_one_run() -> None:
    def steps(seed: int) -> list[str]:
        told: list[str] = []
        Simulation(seed, trace=told.append).run()
        return told

    assert steps(7) == steps(7)
    assert steps(7) != steps(8)


def test_bounds_on_age_change_no_other_draw_of_a_seed() -> None:
    for seed in range(SEEDS):
        plan, without = plan_of(seed), plan_of(seed, ages=False)
        assert replace(plan, messages=without.messages, max_age_us=None) == without
        assert [one.arrives_us for one in plan.messages] == [one.arrives_us for one in without.messages]


def test_seeds_cover_both_rules_all_kinds_of_sources_and_the_real_encoding() -> None:
    plans = [plan_of(seed) for seed in range(SEEDS)]
    assert {plan.policy.rule for plan in plans} == {"band", "frontier"}
    assert {plan.kind for plan in plans} == set(SOURCES)
    assert {plan.real_codec for plan in plans} == {True, False}
    assert {plan.trackers for plan in plans} == {1, 2}
    assert any(plan.hole_until_us for plan in plans)
    assert any(plan.tracking_at_us > plan.messages[0].publish_us for plan in plans)
    assert any(plan.incidents for plan in plans)
    assert any(plan.operators for plan in plans)
    assert any(one.flaw == TOO_OLD for plan in plans for one in plan.messages)
