"""The simulation finds bugs: each fault that is planted shows in the seed that is noted for it, and not without it."""

from itertools import pairwise

import pytest

from tests.simulation.broken_rounds import ADDED_TWICE
from tests.simulation.oracle import Broken
from tests.simulation.plan import plan_of
from tests.simulation.search import PLANTED, found
from tests.simulation.simulation import Simulation


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """The seeds that are always played include those of the faults: without the fault, all is well there."""
    assert found(PLANTED[name]) == PLANTED[name].first_shown, "it shows in another seed now: note that as `first_shown`"


@pytest.mark.parametrize(("invariant", "seed"), [(0, 4), (1, 5)])
def test_a_run_misses_what_readers_acknowledge_before_the_commit(invariant: int, seed: int) -> None:
    """Durable files are not enough: what is acknowledged is to be visible to each run that begins later. If it no
    longer shows there, search with `found(…, invariant)`."""
    with pytest.raises(Broken) as broken:
        Simulation(seed, planted=PLANTED["readers acknowledge files, which count as durable"]).run()
    assert broken.value.number == invariant


def test_a_round_that_is_added_twice_breaks_no_invariant() -> None:
    """The rows are there twice, and a heartbeat has one row of its window all the same."""
    twice = 0
    for seed in (seed for seed in range(5) if plan_of(seed).rounds is not None):
        simulation = Simulation(seed, planted=ADDED_TWICE)
        simulation.run()
        twice += sum(len(rows) for rows, again in pairwise(simulation.heartbeats.commits) if rows and rows == again)
    assert twice > 30
