"""`python -m tests.simulation`: as many seeds as wanted over all cores, or one with everything that happened in it."""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields

from tests.simulation.faults import AS_IT_IS, Planted
from tests.simulation.oracle import Broken
from tests.simulation.search import PLANTED
from tests.simulation.simulation import Simulation
from tidemark.pipeline.watermark.decision import Reason

COUNTED = (
    *("messages", "steps", "crashes", "failed ticks", "rounds", "lost rounds", "copies", "waited", "dropped"),
    *("windows", "late", "missed"),
)
"""What is told of runs."""

AT_ONCE = 50
"""Seeds in one task: a failure shows soon, and handing out costs nothing."""


def main() -> int:
    """The exit code: 1 where a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="tell every step (with --seed)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--fault", choices=sorted(PLANTED), help="with this fault planted")
    options = parser.parse_args()
    planted = PLANTED.get(options.fault, AS_IT_IS)
    if options.seed is not None:
        return one(options.seed, planted, trace=options.trace)
    return many(options.first, options.seeds, max(1, options.jobs), planted)


def one(seed: int, planted: Planted, *, trace: bool) -> int:
    """Play one seed."""
    simulation = Simulation(seed, planted=planted, trace=print if trace else None)
    for field in fields(simulation.plan):
        if field.name != "messages":
            print(f"{field.name} = {getattr(simulation.plan, field.name)}")
    try:
        print(simulation.run())
    except Broken as broken:
        print(broken)
        return 1
    return 0


def many(first: int, seeds: int, jobs: int, planted: Planted) -> int:
    """Play a range of seeds, and tell how it goes and which failed."""
    began, done, failed = time.monotonic(), 0, dict[int, str]()
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [
            pool.submit(play, start, min(start + AT_ONCE, first + seeds), planted.name)
            for start in range(first, first + seeds, AT_ONCE)
        ]
        for number, task in enumerate(as_completed(tasks)):
            played, broken, counts = task.result()
            done, failed, totals = done + played, failed | broken, totals + counts
            for told in broken.values():  # at once: a long run may be stopped
                print(f"\n{told}\n", flush=True)
            if number % 20 == 0 or done == seeds:
                rate = done / (time.monotonic() - began)
                print(f"{done:,} of {seeds:,} seeds, {rate:.0f} a second, {len(failed)} failed", flush=True)
    print(", ".join(f"{totals[what]:,} {what}" for what in COUNTED))
    print("decided while there was trouble: " + ", ".join(f"{totals[reason]:,} {reason}" for reason in Reason))
    if failed:
        print(f"\nfailed: {' '.join(map(str, sorted(failed)))}")
        print(f"play one again: .venv/bin/python -m tests.simulation --seed {min(failed)} --trace")
    return 1 if failed else 0


def play(start: int, end: int, fault: str) -> tuple[int, dict[int, str], Counter[str]]:
    """Play the seeds of one task: how many, what failed, and what was put to the test."""
    failed: dict[int, str] = {}
    totals: Counter[str] = Counter()
    for seed in range(start, end):
        try:
            totals += Simulation(seed, planted=PLANTED.get(fault, AS_IT_IS)).run()
        except Broken as broken:
            failed[seed] = str(broken)
        except Exception as error:
            failed[seed] = f"seed {seed}: {type(error).__name__}: {error}"
    return end - start, failed, totals


if __name__ == "__main__":
    sys.exit(main())
