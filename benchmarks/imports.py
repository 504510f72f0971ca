"""`python -m benchmarks.imports`: how long imports and the first commands take, beside `import dagster`. The least of
some rounds, in seconds; on a busy machine look at the seconds of the processor."""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

LAKE = Path(__file__).parent.parent / "tests" / "fixtures" / "lake-1"
TIDEMARK = str(Path(sys.executable).parent / "tidemark")

DAGSTER = "import dagster"
GOALS = {
    "import tidemark_watermark": 0.2,
    "import tidemark.dagster": 0.7,
    "import tidemark.watermark": 0.5,
    "tidemark --help": 0.5,
    "tidemark watermark": 0.5,
    "tidemark status": 0.9,
}
"""In seconds, on two quiet cores; that of `import tidemark.dagster` is above `import dagster`."""


def measured(what: str, rounds: int, folder: Path) -> tuple[float, float]:
    """The least seconds that it takes, and the least of the processor."""
    words = [sys.executable, "-c", what] if what.startswith("import") else [TIDEMARK, *what.split()[1:]]
    walls, processor = [], []
    for _ in range(rounds):
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.monotonic() - began)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(walls), min(processor)


def main() -> None:
    """Parse what is asked for, measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (default 5)")
    rounds = parser.parse_args().rounds
    table = Table("", "s", "s above", "goal", "s of the processor", box=None)
    with tempfile.TemporaryDirectory(prefix="tidemark-imports-") as made:
        lake = Path(shutil.copytree(LAKE, Path(made) / "lake"))
        base, of_base = measured(DAGSTER, rounds, lake)
        table.add_row(DAGSTER, f"{base:.2f}", "", "", f"{of_base:.2f}")
        for what, goal in GOALS.items():
            wall, processor = measured(what, rounds, lake)
            above = f"{wall - base:.2f}" if what == "import tidemark.dagster" else ""
            table.add_row(what, f"{wall:.2f}", above, f"{goal}", f"{processor:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
