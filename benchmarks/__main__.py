"""`make bench`: measure every stage, print the table, write `build/bench.json`. Exits with 0 whatever the ratios."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.catch_up import measure_catch_up
from benchmarks.diffs import measure_diffs
from benchmarks.freshness import measure_freshness
from benchmarks.idle import measure_idle_tick
from benchmarks.large import measure_large
from benchmarks.machine import Machine, machine
from benchmarks.measures import Measure, show, write
from benchmarks.memory import measure_memory
from benchmarks.own_table import measure_own_table
from benchmarks.shapes import measure_shapes
from benchmarks.sizes import measure_histogram_bytes, measure_tick_write_bytes
from benchmarks.ticks import measure_land, measure_track

Stage = Callable[[Machine, int, float], Sequence[Measure]]

STAGES: dict[str, Stage] = {
    "track": lambda *given: [measure_track(*given)],
    "land": lambda *given: [measure_land(*given)],
    "shapes": lambda _, rounds, scale: measure_shapes(rounds, scale),
    "diffs": measure_diffs,
    "diffs_large": measure_large,
    "own_table": measure_own_table,
    "catch_up": measure_catch_up,
    "freshness": measure_freshness,
    "idle_tick": lambda *given: [measure_idle_tick(*given)],
    "histogram_bytes": lambda _, rounds, scale: measure_histogram_bytes(rounds, scale),
    "tick_write_bytes": measure_tick_write_bytes,
    "memory": lambda _, rounds, scale: measure_memory(rounds, scale),
}


def main() -> None:
    """Parse what is asked for, and do it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full sizes, such as 0.1 (default 1)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each stage (default 3)")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"which, of {','.join(STAGES)} (default all)")
    parser.add_argument("--emulator", choices=("auto", "official", "local"), default="auto", help="which Pub/Sub")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="the results as JSON")
    asked = parser.parse_args()
    unknown = set(asked.stages.split(",")) - STAGES.keys()
    if unknown or asked.scale <= 0 or asked.rounds < 1:
        parser.error(f"stages are {', '.join(STAGES)}; scale and rounds are positive")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends us ends what we started
    console = Console(width=None if sys.stdout.isatty() else 120)
    folder = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    measures: list[Measure] = []
    began = time.monotonic()
    try:
        with machine(folder, asked.emulator, console.print) as parts:
            for name in asked.stages.split(","):
                stage_began = time.monotonic()
                measures += STAGES[name](parts, asked.rounds, asked.scale)
                console.print(f"{name}: measured in {time.monotonic() - stage_began:.0f} s")
                write(measures, asked.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(measures, console)
    console.print(f"{asked.out} written; all took {time.monotonic() - began:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
