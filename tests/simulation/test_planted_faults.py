"""The simulation finds bugs: each fault that is planted shows within its number of seeds, and not without it."""

from itertools import pairwise

import pytest

from tests.simulation.faults import ADDED_TWICE, PLANTED
from tests.simulation.oracle import Broken
from tests.simulation.plan import plan_of
from tests.simulation.search import SEEDS, found
from tests.simulation.simulation import Simulation

BREAKS = {
    1: "no anchor",
    2: "the watermark follows the candidate back",
    3: "base is acknowledged before it has landed",
    4: "a run reads the oldest decision",
    5: "T is read before what was persisted is acknowledged",
    6: "of copies the one that landed first",
}
"""For each invariant, a fault that breaks it."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    seed = found(PLANTED[name])
    assert seed is not None
    if seed not in SEEDS:  # and it was the fault: without it, all is well, as in those that are always played
        Simulation(seed).run()


@pytest.mark.parametrize("invariant", BREAKS)
def test_each_invariant_can_be_seen_to_break(invariant: int) -> None:
    assert found(PLANTED[BREAKS[invariant]], invariant) is not None


@pytest.mark.parametrize(("invariant", "seed"), [(0, 4), (1, 153)])
def test_a_run_misses_what_readers_acknowledge_before_the_commit(invariant: int, seed: int) -> None:
    """Durable files are not enough: what is acknowledged is to be visible to each run that begins later. If it no
    longer shows there, search with `found(…, invariant)`."""
    with pytest.raises(Broken) as broken:
        Simulation(seed, planted=PLANTED["readers acknowledge files, which count as durable"]).run()
    assert broken.value.number == invariant


def test_a_round_that_is_added_twice_breaks_no_invariant() -> None:
    """The rows are there twice, and a heartbeat has one row of its window all the same."""
    twice = 0
    for seed in (seed for seed in range(60) if plan_of(seed).rounds is not None):
        simulation = Simulation(seed, planted=ADDED_TWICE)
        simulation.run()
        twice += sum(len(rows) for rows, again in pairwise(simulation.heartbeats.commits) if rows and rows == again)
    assert twice > 100


def test_a_failure_names_its_seed_its_last_steps_and_how_to_play_it_again() -> None:
    planted = PLANTED["base is acknowledged before it has landed"]
    with pytest.raises(Broken) as broken:
        Simulation(0, planted=planted).run()
    told = str(broken.value)
    assert told.startswith("seed 0: invariant 3 (acknowledged is durable): acknowledged on base, and not durable")
    assert "pulled" in told
    assert told.endswith(f'\n.venv/bin/python -m tests.simulation --seed 0 --trace --fault "{planted.name}"')
