"""What must always be true, over some fifty seeds; `make simulate SEEDS=...` plays as many as one likes."""

from collections import Counter

from tests.simulation.search import SEEDS
from tests.simulation.simulation import Simulation
from tidemark.pipeline.watermark.decision import Reason


def test_every_invariant_holds_under_any_trouble() -> None:
    totals: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed)
        counts = simulation.run()
        totals += counts
        if simulation.plan.kind == "beyond the band":
            beyond += counts
    # It was put to the test: there was trouble, and while there was, the watermark moved, and was held for each reason.
    assert totals["crashes"] > len(SEEDS)
    assert totals["failed ticks"] > len(SEEDS)
    assert totals[Reason.ADVANCED] > len(SEEDS) // 4
    assert totals[Reason.PINNED_BY_BACKLOG] > len(SEEDS) // 4
    # Its clocks are wrong by too little for HELD_CLOCK_SKEW: that is tests/watermark/test_clock_skew.py.
    for reason in set(Reason) - {Reason.HELD_CLOCK_SKEW}:
        assert totals[reason], f"no decision said {reason}"
    assert totals["rounds"] > len(SEEDS)
    assert totals["lost rounds"] > len(SEEDS) // 10, "drivers died, or the lake failed, while they settled"
    assert totals["copies"], "readers have counted copies of what they remember"
    assert totals["waited"] > len(SEEDS) // 10, "messages have waited for the revision of their schema"
    assert totals["dropped"] > len(SEEDS), "entries of the log were dropped"
    assert totals["windows"] > 2 * len(SEEDS)
    # Sources beyond the band have late and missed messages, and both are counted.
    assert beyond["late"] > 0
    assert beyond["missed"] > 0


def test_one_seed_is_one_run() -> None:
    def steps(seed: int) -> list[str]:
        told: list[str] = []
        Simulation(seed, trace=told.append).run()
        return told

    once = steps(7)
    assert once == steps(7)
    assert once != steps(8)


def test_every_invariant_holds_for_what_passes_a_filter() -> None:
    windows = [Simulation(seed, filtered=True).run()["windows"] for seed in SEEDS[::10]]
    assert sum(windows) > 2 * len(windows)
