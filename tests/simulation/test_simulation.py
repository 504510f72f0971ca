"""What must always be true, over some hundred seeds; `make simulate SEEDS=...` plays as many as one likes."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.__main__ import counted
from tests.simulation.ages import TOO_OLD
from tests.simulation.first_shown import SEEDS
from tests.simulation.plan import SOURCES, plan_of
from tests.simulation.simulation import Simulation
from tidemark.pipeline.watermark.decision import Reason

PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_every_invariant_holds_under_any_trouble(part: int) -> None:
    totals: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    seeds = SEEDS[part::PARTS]
    for seed in seeds:
        outcome = Simulation(seed).run()
        totals += counted(outcome)
        if outcome.kind == "beyond the band":
            beyond += Counter(late=outcome.late, missed=outcome.missed)
    # It was put to the test: there was trouble, and while there was, the watermark moved, and was held for each reason.
    assert totals["crashes"] > len(seeds)
    assert totals["failed ticks"] > len(seeds)
    assert totals[Reason.ADVANCED] > len(seeds) // 4
    assert totals[Reason.PINNED_BY_BACKLOG] > len(seeds) // 4
    # Its clocks are wrong by too little for HELD_CLOCK_SKEW: that is tests/ingest/test_clock_skew.py.
    for reason in set(Reason) - {Reason.HELD_CLOCK_SKEW}:
        assert totals[reason], f"no decision of seeds {seeds[:3]}, ... said {reason}"
    assert totals["rounds"] > len(seeds)
    assert totals["lost rounds"] > len(seeds) // 10, "drivers died, or the lake failed, while they settled"
    assert totals["copies"], "readers have counted copies of what they remember"
    assert totals["waited"] > len(seeds) // 10, "messages have waited for the revision of their schema"
    assert totals["dropped"] > len(seeds), "entries of the log were dropped"
    assert totals["windows"] > 2 * len(seeds)
    # Sources beyond the band have late and missed messages, and both are counted.
    assert beyond["late"] > 0
    assert beyond["missed"] > 0


def test_one_seed_is_one_run() -> None:
    def steps(seed: int) -> list[str]:
        told: list[str] = []
        Simulation(seed, trace=told.append).run()
        return told

    assert steps(7) == steps(7)
    assert steps(7) != steps(8)


def test_every_invariant_holds_for_what_passes_a_filter() -> None:
    windows = [Simulation(seed, filtered=True).run().windows for seed in SEEDS[::10]]
    assert sum(windows) > 2 * len(windows)


def test_bounds_on_age_change_no_other_draw_of_a_seed() -> None:
    for seed in SEEDS:
        plan, without = plan_of(seed), plan_of(seed, ages=False)
        assert replace(plan, messages=without.messages, max_age_us=None) == without
        assert [one.arrives_us for one in plan.messages] == [one.arrives_us for one in without.messages]


def test_rounds_change_no_other_draw_of_a_seed() -> None:
    for seed in SEEDS:
        plan, without = plan_of(seed), plan_of(seed, rounds=False)
        assert replace(plan, rounds=None, policy=without.policy, scales_us=without.scales_us) == without


def test_dropped_archives_change_no_other_draw_of_a_seed() -> None:
    for seed in SEEDS:
        assert replace(plan_of(seed), drops_after=None) == plan_of(seed, drops=False)


def test_payloads_change_no_other_draw_of_a_seed() -> None:
    for seed in SEEDS:
        plan, without = plan_of(seed), plan_of(seed, payloads=False)
        judged = {"messages": without.messages, "policy": without.policy, "clock_apart": without.clock_apart}
        assert replace(plan, payloads=None, **judged) == without
        assert [one.arrives_us for one in plan.messages] == [one.arrives_us for one in without.messages]


def test_seeds_cover_both_rules_all_kinds_of_sources_and_the_real_encoding() -> None:
    plans = [plan_of(seed) for seed in SEEDS]
    assert {plan.policy.rule for plan in plans} == {"band", "frontier"}
    assert {plan.kind for plan in plans} == set(SOURCES)
    assert {plan.real_codec for plan in plans} == {True, False}
    assert {plan.trackers for plan in plans} == {1, 2}
    assert any(plan.hole_until_us for plan in plans)
    assert any(plan.tracking_at_us > plan.messages[0].publish_us for plan in plans)
    assert any(plan.incidents for plan in plans)
    rounds = [plan.rounds for plan in plans if plan.rounds is not None]
    assert {one.drivers for one in rounds} == {1, 2}
    assert {one.beside for one in rounds} == {"ticks", "deciders", "ticks in between"}
    assert {one.readers for one in rounds} == {1, 2, 3, 4, 5, 8}
    assert {one.until_young for one in rounds} == {True, False}
    assert any(one.answer_lost and one.twice for one in rounds)
    assert any(plan.operators for plan in plans)
    assert any(one.flaw == TOO_OLD for plan in plans for one in plan.messages)
    assert {plan.drops_after is None for plan in plans} == {True, False}
    assert {plan.payloads.written for plan in plans if plan.payloads is not None} == {"json", "avro"}
    written = [one for plan in plans for one in plan.messages if one.written]
    assert {one.is_compressed for one in written} == {one.is_doubtful for one in written} == {True, False}
    assert any(one.appears_us is None for one in written)
