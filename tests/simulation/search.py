"""The search for a seed in which a planted fault shows.

`python -m tests.simulation.search` prints the table of `first_shown.py`, searched again where a fault no longer shows.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.faults import PLANTED, Planted
from tests.simulation.first_shown import FIRST_SHOWN
from tests.simulation.oracle import Broken
from tests.simulation.plan import plan_of
from tests.simulation.simulation import Simulation


def found(planted: Planted, invariant: int | None = None) -> int | None:
    """A seed in which the fault shows, as a break of this invariant; where it is known to show, or the first one."""
    for seed in (FIRST_SHOWN.get(planted.name, 0), *range(planted.found_within)):
        if not planted.where(plan_of(seed)):
            continue
        try:
            Simulation(seed, planted=planted).run()
        except Broken as broken:
            if invariant in (None, broken.number):
                return seed
    return None


def first_shown() -> Iterator[tuple[str, int | None]]:
    """Each planted fault with such a seed, by all cores."""
    with ProcessPoolExecutor() as pool:
        yield from zip(PLANTED, pool.map(_found, PLANTED), strict=True)


def _found(name: str) -> int | None:
    return found(PLANTED[name])


if __name__ == "__main__":
    print("FIRST_SHOWN = {")
    for name, seed in first_shown():
        if seed:
            print(f'    "{name}": {seed},', flush=True)
    print("}")
