"""The search for a seed in which a planted fault shows: `python -m tests.simulation.search` prints one for each."""

from concurrent.futures import ProcessPoolExecutor

from tests.simulation import broken_estimates, broken_parts, broken_rounds  # noqa: F401 (they plant)
from tests.simulation.faults import PLANTED as PLANTED
from tests.simulation.faults import Planted
from tests.simulation.oracle import Broken
from tests.simulation.plan import plan_of
from tests.simulation.simulation import Simulation

SEARCHED = 10_000
"""The most seeds that are looked through for a fault."""

COUNT_COPIES = (633, 660)
"""Seeds in which readers count several copies of what they remember, which few others do."""

SEEDS = sorted({*range(8), *COUNT_COPIES, *(planted.first_shown for planted in PLANTED.values())})
"""The seeds that the tests play without a fault. Those in which a planted fault shows are the most telling."""


def found(planted: Planted, invariant: int | None = None) -> int | None:
    """A seed in which the fault shows, as a break of this invariant; where it is known to show, or the first one."""
    for seed in (planted.first_shown, *range(SEARCHED)):
        if not planted.where(plan_of(seed)):
            continue
        try:
            Simulation(seed, planted=planted).run()
        except Broken as broken:
            if invariant in (None, broken.number):
                return seed
    return None


def _found(name: str) -> int | None:
    return found(PLANTED[name])


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        for name, seed in zip(PLANTED, pool.map(_found, PLANTED), strict=True):
            print(f"{name}: {seed}", flush=True)
